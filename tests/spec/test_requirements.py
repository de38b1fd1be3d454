"""Requirements files in every common form: what pip gets, or the sentence with file and line."""

import re
from pathlib import Path

import pytest

from outlast.spec import requirements
from outlast.spec.requirements import Files, Folder, RequirementsError, read

SHA = "sha256:" + "0a" * 32
COMMIT = "0123456789abcdef" * 2 + "01234567"


def tree(**files: str | bytes) -> Files:
    """Files by names in which two underscores stand for a slash, and one for the dot at the end."""
    named = {}
    for name, data in files.items():
        whole = name.replace("__", "/")
        head, _, tail = whole.rpartition("_")
        named[f"{head}.{tail}"] = data if isinstance(data, bytes) else data.encode()
    return Files(named)


def text(content: str | bytes, **files: str | bytes) -> str:
    return read("needs.txt", tree(needs_txt=content, **files)).text


def refusal(content: str | bytes, *, alone: bool = False, **files: str | bytes) -> str:
    with pytest.raises(RequirementsError) as caught:
        read("needs.txt", tree(needs_txt=content, **files), alone=alone)
    said = str(caught.value)
    assert "\n" not in said and ";" in said  # one sentence, and what to do
    return said


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("numpy>=2\n", "numpy>=2\n"),
        ("numpy >= 2 , < 3  # why\n\n# note\n", "numpy<3,>=2\n"),
        (
            "requests [security] == 2.8.* ; python_version < '3.12'\n",
            'requests[security]==2.8.*; python_version < "3.12"\n',
        ),
        ("a\r\nb==1\r\n", "a\nb==1\n"),
        ("a\rb", "a\nb\n"),
        ("a>=1, \\\n  <2 \\\n  # the middle\nb", "a<2,>=1\nb\n"),
        ("a==1 \\\n", "a==1\n"),
        ("a\na\n", "a\n"),
        ("b\n--pre\n-i https://h/simple\na", "--pre\n--index-url https://h/simple\nb\na\n"),
        ("--extra-index-url=https://h/simple/\na", "--extra-index-url https://h/simple/\na\n"),
        ("--no-binary :all:\n--only-binary=a,b\na", "--no-binary :all:\n--only-binary a,b\na\n"),
        (
            "-i https://oauth2accesstoken@eu-python.pkg.dev/p/r/simple/\na",
            "--index-url https://eu-python.pkg.dev/p/r/simple/\na\n",
        ),
        ("-f https://h/wheels.html\na", "--find-links https://h/wheels.html\na\n"),
        ("a @ https://h/a-1-py3-none-any.whl", "a @ https://h/a-1-py3-none-any.whl\n"),
        (
            "https://h/a.zip#egg=A_b[x] ; os_name == 'nt'",
            'A_b[x] @ https://h/a.zip#egg=A_b[x] ; os_name == "nt"\n',
        ),
        (f"a==1 --hash={SHA}", f"a==1 \\\n    --hash={SHA}\n"),
        (
            f"a==1 \\\n  --hash={SHA} \\\n  --hash={SHA}\n",
            f"a==1 \\\n    --hash={SHA} \\\n    --hash={SHA}\n",
        ),
        ("a --config-settings=x=y", "a \\\n    --config-settings x=y\n"),
        ("torch==2.1.0+cu118", "torch==2.1.0+cu118\n"),
    ],
)
def test_what_pip_gets(content: str, wanted: str):
    assert text(content) == wanted
    assert text(wanted) == wanted  # a file of ours means the same


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"], ids=lambda name: name
)
def test_a_file_in_any_marked_encoding_reads_alike(encoding: str):
    assert text("numpy==2.1 # für alle\r\nscipy\r\n".encode(encoding)) == "numpy==2.1\nscipy\n"


def test_a_declared_encoding_counts():
    assert text("# -*- coding: latin-1 -*-\na # für\n".encode("latin-1")) == "a\n"


def test_included_files_become_lines_of_the_one_that_includes_them():
    files = tree(
        req__train_txt="-r ../base.txt\n-c constraints.txt\nkeras\n",
        base_txt="--extra-index-url https://h/simple\nnumpy\n--requirement=more/x.txt\n",
        more__x_txt="scipy ; python_version >= '3'\n",
        req__constraints_txt="numpy<3\nscipy==1.*\n",
    )
    found = read("req/train.txt", files, alone=True)
    assert found.text == (
        "--extra-index-url https://h/simple\n-c outlast-constraints.txt\n"
        'numpy\nscipy; python_version >= "3"\nkeras\n'
    )
    assert found.constraints_text == "numpy<3\nscipy==1.*\n"
    assert found.files == ("req/train.txt", "base.txt", "more/x.txt", "req/constraints.txt")
    assert found.indexes == ("https://h/simple",)
    assert found.data == found.text.encode()
    assert [one.place for one in found.wanted] == [
        "base.txt line 2",
        "more/x.txt line 1",
        "req/train.txt line 3",
    ]
    # Delivered alone, it asks for the same.
    again = Files(
        {"user.txt": found.data, requirements.CONSTRAINTS: found.constraints_text.encode()}
    )
    assert read("user.txt", again, alone=True).text == found.text


def test_a_file_without_includes_is_delivered_as_it_is():
    content = "# mine\r\nnumpy\r\n".encode("utf-16")
    assert read("needs.txt", tree(needs_txt=content), alone=True).data == content


def test_one_file_twice_is_read_once_for_each_and_asked_once():
    assert (
        text("-r a.txt\n-r b.txt\n", a_txt="-r c.txt\n", b_txt="-r c.txt\n", c_txt="x\n") == "x\n"
    )


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("-e .", "."),
        (".[train]", "."),
        ("./lib", "lib"),
        ("-e file:.", "."),
        ("-e file:./lib#egg=x", "lib"),
        ("lib/ ; python_version > '3'", "lib"),
        ("-e ./lib[x,y]", "lib"),
        ("lib/a-1-py3-none-any.whl", "lib/a-1-py3-none-any.whl"),
    ],
)
def test_local_files_are_those_beside_the_file(line: str, source: str):
    files = Files({"p/needs.txt": line.encode(), "p/lib/a-1-py3-none-any.whl": b""})
    (one,) = read("p/needs.txt", files).wanted
    assert one.source.local == source
    assert read("p/needs.txt", files).locals == (source,)
    with pytest.raises(RequirementsError, match="set outlast:requirements to the folder"):
        read("p/needs.txt", files, alone=True)


def test_a_folder_of_wheels_is_found_beside_the_file_that_names_it():
    files = Files(
        {
            "p/needs.txt": b"-r sub/x.txt\n",
            "p/sub/x.txt": b"-f wheels\na\n",
            "p/sub/wheels/a.whl": b"",
        }
    )
    assert read("p/needs.txt", files).text == "--find-links ./sub/wheels\na\n"


@pytest.mark.parametrize(
    ("line", "git", "text"),
    [
        (
            f"git+https://github.com/openai/CLIP.git@{COMMIT}",
            ("https://github.com/openai/CLIP.git", COMMIT, ""),
            "./place",
        ),
        (
            f"clip[x] @ git+https://github.com/openai/CLIP@{COMMIT} ; os_name == 'posix'",
            ("https://github.com/openai/CLIP", COMMIT, ""),
            './place[x] ; os_name == "posix"',
        ),
        (
            f"-e git+https://h/o/n.git@{COMMIT.upper()}#egg=n&subdirectory=python",
            ("https://h/o/n.git", COMMIT, "python"),
            "./place",
        ),
    ],
)
def test_a_commit_of_a_public_repository_is_fetched_for_pip(line: str, git: tuple, text: str):
    (one,) = read("needs.txt", tree(needs_txt=line), alone=True).wanted
    assert one.source.git is not None
    assert (one.source.git.url, one.source.git.commit, one.source.git.path) == git
    assert one.line("./place") == text


REFUSED = [
    # Includes and paths.
    ("-r nowhere.txt", "needs.txt line 1 '-r nowhere.txt': nowhere.txt does not exist"),
    ("a\n-r needs.txt", "needs.txt line 2 '-r needs.txt': needs.txt includes this file again"),
    ("-r ../base.txt", "../base.txt is outside of what is delivered"),
    ("-r /home/me/base.txt", "must be a path relative to this file"),
    ("-r C:\\base.txt", "must be a path relative to this file"),
    ("-c https://h/constraints.txt", "may change while the run stays the same"),
    ("-r a.txt -i https://h/simple", "-r must be alone on its line"),
    ("-r", "-r has no value"),
    ("/home/me/pkg", "names a path on your machine"),
    ("./nowhere", "nowhere does not exist, or is not delivered"),
    ("-e ../pkg", "../pkg is outside of what is delivered"),
    (".\\pkg", "a path must be relative and with forward slashes"),
    ("numpy @ file:///croot/numpy/work", "(pip freeze writes such lines); write the name"),
    ("file:///home/me/x.whl", "names a file of your machine"),
    ("x @ ./sub", "the part after @ must be an address; write a path alone"),
    # Repositories.
    ("git+https://github.com/openai/CLIP.git", "names no commit, and must name a commit by its 40"),
    ("git+https://github.com/openai/CLIP.git@main#egg=clip", "names main, and must name a commit"),
    ("x @ git+ssh://git@github.com/o/n.git@" + COMMIT, "a VM has no git program and no key"),
    ("git+git@github.com:o/n.git", "a VM has no git program"),
    ("git://github.com/o/n.git", "a VM has no program to read it with"),
    ("hg+https://h/x@1", "a VM has no hg to read it with"),
    (f"git+https://h/o/n.git@{COMMIT}#subdirectory=../x", "is outside of the repository"),
    # Indexes and passwords.
    ("-i https://me:pass@h/simple", "holds a password or a token"),
    ("-i https://TOKEN@h/simple", "holds a password or a token"),
    ("a @ https://me:pass@h/a.whl", "holds a password or a token"),
    (f"git+https://tok:x@github.com/o/n.git@{COMMIT}", "holds a password or a token"),
    (
        "-i https://_json_key_base64:abc@eu-python.pkg.dev/p/r/simple",
        "a VM reads this host with its own",
    ),
    ("-i https://${USER}:${TOKEN}@h/simple", "pip on a VM has no variable ${USER}"),
    ("-i ftp://h/simple", "--index-url must be an address with https"),
    ("-i http://h/simple\na", "pip passes over an index by http"),
    ("a --extra-index-url https://h/simple", "pip ignores --extra-index-url on a"),
    ("-f gs://b/wheels\na", "does not exist"),
    ("gs://b/a-1-py3-none-any.whl", "pip cannot read gs:"),
    # Hashes.
    (f"a==1 --hash={SHA}\nb==1", "needs.txt line 2 'b==1': has no --hash, and others have"),
    ("--require-hashes\na==1", "needs.txt line 2 'a==1': has no --hash"),
    (f"a>=1 --hash={SHA}", "has a hash, and must be one version"),
    (f"a==1.* --hash={SHA}", "has a hash, and must be one version"),
    ("a==1 --hash=sha256:00", "must be sha256: and 64 hexadecimal digits"),
    ("a==1 --hash=md5:" + "0" * 32, "must be sha256: and 64 hexadecimal digits"),
    (
        f"a==1 --hash={SHA}\ngit+https://h/o/n@{COMMIT}",
        "pip checks none of a folder or a repository",
    ),
    ("--hash=" + SHA, "--hash must follow its package"),
    # Other installers' files.
    ("numpy=1.26.4=py311h_0", "needs.txt line 1 'numpy=1.26.4=py311h_0': is conda's form"),
    ("numpy=1.26", "write numpy==1.26"),
    (
        "name: x\nchannels:\n  - conda-forge\ndependencies:\n  - numpy",
        "needs.txt line 2 'channels:': is a conda file",
    ),
    ("# platform: linux-64\n@EXPLICIT\nhttps://h/x.conda", "is a conda file"),
    ("python==3.11", "Python is not a package of the index"),
    # Slips.
    ("numpy 1.26", "needs.txt line 1 'numpy 1.26': is not a requirement"),
    ("numpy>=", "is not a requirement"),
    ("numpy; python_version >", "is not a requirement"),
    ("./sub ; python_version >", "its condition is not valid"),
    ("numpy\u200b==1", "is not a requirement"),
    ("numpy==1 --foo", "--foo is not an option in a requirements file"),
    ("--install-option=x", "--install-option is not an option in a requirements file"),
    ('-r "base.txt', "its quotes do not match"),
    ("pip install numpy", "is not a requirement"),
    ("<html>", "is not a requirement"),
]


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=[line[:40] for line, _ in REFUSED])
def test_what_no_vm_can_install_is_refused_by_its_line(content: str, said: str):
    found = refusal(content, a_txt="x\n", sub__x_py="")
    assert said in found and found.startswith("needs.txt")
    assert not re.search(r"me:pass|TOKEN@|tok:x|:abc@", found)


def test_a_message_names_the_included_file():
    said = refusal("-r more/base.txt", more__base_txt="numpy\n\ntorch=2.0\n")
    assert said.startswith("more/base.txt line 3 'torch=2.0': is conda's form")


def test_files_that_include_each_other_are_refused():
    said = refusal("-r a.txt", a_txt="x\n-r needs.txt\n")
    assert said.startswith("a.txt line 2 '-r needs.txt': needs.txt includes this file again")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("numpy[x]", "a constraint must be a name and its versions"),
        ("./sub", "a constraint must be a name and its versions"),
    ],
)
def test_a_constraint_is_a_name_and_versions(line: str, said: str):
    assert said in refusal("-c limits.txt\nnumpy", limits_txt=line, sub__x_py="")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\nb # f\xfcr\n", "needs.txt line 2: byte 0xfc is not utf-8"),
        ("numpy\n".encode("utf-16-le"), "needs.txt line 1: holds a null character"),
        (b"# coding: klingon\na", "declares the encoding 'klingon'"),
        (b"a" * (5 << 20), "has 5242880 bytes"),
    ],
)
def test_a_binary_file_is_refused(content: bytes, said: str):
    assert said in refusal(content)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("conda/environment.yml", "is a conda file, which pip cannot install from"),
        ("poetry.lock", "poetry export"),
        ("uv.lock", "uv export"),
        ("Pipfile", "pipenv requirements"),
        ("pylock.toml", "uv export"),
        ("train/pyproject.toml", "is part of a project; name its folder, train"),
        ("setup.py", "is part of a project; name its folder, ."),
    ],
)
def test_files_of_other_installers_are_refused_by_name(name: str, said: str):
    with pytest.raises(RequirementsError, match=re.escape(said)) as caught:
        requirements.refuse_other_forms(name)
    assert str(caught.value).startswith(f"{name}: ")


def test_a_repository_of_artifact_registry_is_known_by_its_host():
    index = "https://europe-west4-python.pkg.dev/acme/wheels/simple/"
    assert requirements.repository(index) == ("acme", "europe-west4", "wheels")
    for other in ("https://pip.example/simple", "https://eu-python.pkg.dev.evil.net/a/b/simple"):
        assert requirements.repository(other) is None
        assert requirements.hosts_of_google([other]) == []
    assert requirements.hosts_of_google([index, index]) == ["europe-west4-python.pkg.dev"]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path):
    (tmp_path / "secret.txt").write_text("numpy\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "needs.txt").write_text("-r base.txt\n")
    (folder / "base.txt").symlink_to("../secret.txt")
    with pytest.raises(RequirementsError, match=r"base\.txt does not exist"):
        read("needs.txt", Folder(folder))


def test_a_package_is_found_by_any_spelling_of_its_name():
    found = read("needs.txt", tree(needs_txt="numpy\nScikit_Learn>=1\n"))
    assert found.place_of("scikit-learn") == "needs.txt line 2" and found.place_of("x") == ""
