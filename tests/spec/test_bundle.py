"""The bundle: the same bytes from every checkout, and nothing that must not leave."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from outlast.spec import bundle
from outlast.spec.bundle import BundleError

ROOT = Path(__file__).resolve().parents[2]

SECRETS = (
    ".env",
    ".git/config",
    "outlast/.env",
    "outlast/key.json",
    "outlast/id_rsa",
    "outlast/trainers/service-account.json",
    "outlast/trainers/credentials.pem",
    "outlast/trainers/.git/hooks/evil.py",
    "outlast/trainers/.hidden.py",
    "outlast/trainers/__pycache__/x.cpython-311.pyc",
    "requirements/dev.txt",
)


@pytest.fixture
def checkout(tmp_path):
    """A small checkout with all that a careless one holds."""
    root = tmp_path / "checkout"
    files = {
        "outlast/__init__.py": "",
        "outlast/py.typed": "",
        "outlast/supervisor/__init__.py": "",
        "outlast/bucket/store.py": "x = 1\n",
        "outlast/cli/__init__.py": "",
        "outlast/cli/app.py": "",
        "outlast/trainers/__init__.py": "",
        "outlast/trainers/operate/__init__.py": "",
        "outlast/trainers/digits.py": "y = 1\n",
        "outlast/requirements/pip.txt": "pip==1\n",
        "outlast/requirements/pip-1-py3-none-any.whl": "-----BEGIN PRIVATE KEY-----\n",
        "outlast/requirements/vm.txt": "blake3==1\n",
        **dict.fromkeys(SECRETS, "secret"),
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_it_holds_the_code_of_a_vm_pips_wheel_and_nothing_else(checkout):
    assert sorted(bundle.members(checkout)) == [
        "outlast/__init__.py",
        "outlast/bucket/store.py",
        "outlast/py.typed",
        "outlast/supervisor/__init__.py",
        "outlast/trainers/__init__.py",
        "outlast/trainers/digits.py",
        "outlast/trainers/operate/__init__.py",
        "requirements/pip-1-py3-none-any.whl",
        "requirements/vm.txt",
    ]


def test_what_git_ignores_is_in_no_bundle(checkout):
    (checkout / "outlast" / "trainers" / "private.py").write_text("KEY = 1\n")
    (checkout / ".gitignore").write_text("private.py\n")
    assert "outlast/trainers/private.py" in list(bundle.members(checkout))
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    found = list(bundle.members(checkout))
    assert "outlast/trainers/private.py" not in found and "outlast/trainers/__init__.py" in found
    # A checkout inside a folder that another repository ignores is complete all the same.
    (checkout / ".gitignore").write_text("*\n")
    assert "outlast/trainers/__init__.py" in list(bundle.members(checkout))


def test_links_are_not_followed(checkout, tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("key")
    (checkout / "outlast" / "trainers" / "link.py").symlink_to(secret)
    (checkout / "outlast" / "trainers" / "folder").symlink_to(tmp_path, target_is_directory=True)
    assert not [name for name in bundle.members(checkout) if "link" in name or "folder" in name]


def test_two_checkouts_give_the_same_bytes(checkout, tmp_path):
    other = tmp_path / "elsewhere" / "clone"
    shutil.copytree(checkout, other)
    for number, path in enumerate(sorted(other.rglob("*.py"))):
        os.utime(path, (number, number))
        path.chmod(0o755)
    assert bundle.pack(checkout) == bundle.pack(other)


def test_the_archive_is_stored_sorted_and_undated(checkout, tmp_path):
    made = bundle.build(checkout, tmp_path / "out")
    with zipfile.ZipFile(made.path) as archive:
        entries = archive.infolist()
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}
    assert {entry.external_attr >> 16 for entry in entries} == {0o100644}


def test_it_is_named_by_its_digest_and_written_once(checkout, tmp_path):
    out = tmp_path / "out"
    made = bundle.build(checkout, out)
    assert made.path == out / f"{made.sha256}.zip"
    assert hashlib.sha256(made.path.read_bytes()).hexdigest() == made.sha256
    before = made.path.stat()
    assert bundle.build(checkout, out) == made
    assert made.path.stat().st_mtime_ns == before.st_mtime_ns
    assert os.listdir(out) == [made.path.name]


def test_any_changed_source_is_another_bundle(checkout, tmp_path):
    before = bundle.build(checkout, tmp_path).sha256
    (checkout / "outlast" / "bucket" / "store.py").write_text("x = 1  # comment\n")
    assert bundle.build(checkout, tmp_path).sha256 != before


@pytest.mark.parametrize(
    "name", ["outlast", "outlast/trainers", "requirements/vm.txt", "requirements/pip-*.whl"]
)
def test_a_checkout_that_lacks_a_part_is_a_sentence(name, checkout):
    folder = checkout if name.startswith("outlast") else checkout / "outlast"
    (path,) = folder.glob(name)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(BundleError, match=f"^{re.escape(name)}: "):
        bundle.pack(checkout)


def test_two_wheels_of_pip_are_refused(checkout):
    (checkout / "outlast/requirements/pip-2-py3-none-any.whl").touch()
    with pytest.raises(BundleError, match="2 files in .* must be 1"):
        bundle.pack(checkout)


def test_the_wheel_of_pip_is_the_pinned_one():
    """What `make lock` fetches beside the pin."""
    pinned = (ROOT / "requirements/pip.txt").read_text()
    (wheel,) = (ROOT / "requirements").glob("pip-*.whl")
    assert f"pip=={wheel.name.split('-')[1]} " in pinned
    assert f"--hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" in pinned


def test_the_real_bundle_imports_by_itself(tmp_path):
    made = bundle.build(ROOT, tmp_path)
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(made.path) as archive:
        archive.extractall(unpacked)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import outlast, outlast.supervisor, outlast.loop, outlast.bucket.store\n"
        "from outlast import trainers\n"
        "print(outlast.__file__, trainers.__file__, *trainers.names())\n"
    )
    found = subprocess.run(
        [sys.executable, "-B", "-P", "-c", code, str(unpacked)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=True,
    )
    outlast_file, trainers_file, *names = found.stdout.split()
    assert outlast_file.startswith(str(unpacked)) and trainers_file.startswith(str(unpacked))
    assert "digits" in names
    left = {
        path.relative_to(unpacked).as_posix()
        for part in bundle.LEFT_OUT
        for path in (unpacked / part).rglob("*.py")
    }
    assert left == {*bundle.NEEDED}


# -- A command's own files


@pytest.fixture
def code(tmp_path):
    """A folder as people have them."""
    folder = tmp_path / "code"
    files = {
        "train.py": "x = 1\n",
        "lib/model.py": "y = 1\n",
        "lib/vocabulary.txt": "a b\n",
        **dict.fromkeys(
            (
                *(".env", "lib/.env.local", "key.pem", "id_rsa", "gcp-credentials.json"),
                *("lib/service-account-7.json", "__pycache__/train.cpython-311.pyc", "secrets.yml"),
            ),
            "secret",
        ),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_of_a_folder_all_but_dotfiles_and_keys_is_delivered(code):
    assert bundle.source_files(code) == {
        "lib/model.py": b"y = 1\n",
        "lib/vocabulary.txt": b"a b\n",
        "train.py": b"x = 1\n",
    }


def test_a_virtual_environment_is_not_code(code):
    for name in ("env/pyvenv.cfg", "env/lib/x.py", "tools/venv/pyvenv.cfg", "tools/venv/y.py"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text("x\n")
    names = ["lib/model.py", "lib/vocabulary.txt", "train.py"]
    assert sorted(bundle.source_files(code)) == names
    subprocess.run(["git", "-C", str(code), "init", "-q"], check=True)
    assert sorted(bundle.source_files(code)) == names


def test_of_a_repository_what_git_ignores_stays(code):
    git = ["git", "-c", "init.defaultBranch=main", "-C", str(code)]
    subprocess.run([*git, "init", "-q"], check=True)
    (code / ".gitignore").write_text("data/\n*.ckpt\n")
    (code / "data").mkdir()
    (code / "data" / "rows.csv").write_text("1\n")
    (code / "last.ckpt").write_text("1\n")
    subprocess.run([*git, "add", "train.py", "key.pem"], check=True)
    (code / "new.py").write_text("not added yet\n")
    assert sorted(bundle.source_files(code)) == [
        *("lib/model.py", "lib/vocabulary.txt", "new.py", "train.py"),
    ]


def test_a_folder_that_git_ignores_as_a_whole_delivers_nothing(code):
    subprocess.run(["git", "-C", str(code), "init", "-q"], check=True)
    (code / ".gitignore").write_text("lib/\n")
    with pytest.raises(BundleError, match="^lib: holds no file to deliver"):
        bundle.source_files(code / "lib")


def test_a_link_among_a_commands_files_is_refused(code):
    (code / "lib" / "data").symlink_to("/etc/hostname")
    with pytest.raises(BundleError, match="^code/lib/data: is a link"):
        bundle.source_files(code)


def test_too_much_to_deliver_is_refused(code, monkeypatch):
    monkeypatch.setattr(bundle, "SOURCE_BYTES_MAX", 10)
    with pytest.raises(BundleError, match="^code: has more than 0 MiB of files; keep data in"):
        bundle.source_files(code)


def test_a_commands_files_are_packed_alike_wherever_they_lie(checkout, code, tmp_path):
    def pack(folder):
        files = bundle.source_files(folder)
        return bundle.pack(checkout, {f"source/{name}": data for name, data in files.items()})

    other = tmp_path / "elsewhere" / "code"
    shutil.copytree(code, other)
    (other / "train.py").touch()
    assert pack(code) == pack(other)
    (tmp_path / "b.zip").write_bytes(pack(code))
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        assert archive.read("source/lib/model.py") == b"y = 1\n"
        assert archive.namelist() == sorted(archive.namelist())


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n"
ACCOUNT = json.dumps({"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nM"})


@pytest.mark.parametrize(
    "name",
    [
        "client_secret_123.apps.googleusercontent.com.json",
        "application_default_credentials.json",
        "kaggle.json",
        "deploy_key",
        "cert.p8",
        "terraform.tfstate",
        "terraform.tfstate.backup",
        "x.pem",
        "sub/ID_RSA",
        "prod.env",
        "gpu.tfvars",
        "host.keytab",
        "credentials",
        "kubeconfig",
        ".env",
    ],
)
def test_a_file_that_is_named_like_a_key_is_left_out(tmp_path, name):
    place = tmp_path / "train" / name
    place.parent.mkdir(parents=True)
    place.write_text(KEY)
    (tmp_path / "train" / "train.py").write_text("x = 1\n")
    assert sorted(bundle.source_files(tmp_path / "train")) == ["train.py"]


@pytest.mark.parametrize(
    ("name", "text", "line", "what"),
    [
        ("myproject-0a1b2c3d4e5f.json", ACCOUNT, 1, "a private key"),
        ("notes", f"first\n{KEY}", 2, "a private key"),
        ("token.txt", "hf_" + "a" * 34, 1, "a Hugging Face token"),
        ("config.py", f"\n\nTOKEN = 'ghp_{'a' * 36}'\n", 3, "a GitHub token"),
        (
            "run.sh",
            "git clone https://me:pass@git.example/o/r.git\n",
            1,
            "a password in an address",
        ),
        ("notebook.ipynb", json.dumps({"source": [ACCOUNT]}), 1, "a private key"),
        ("wide.txt", ("AKIA" + "A" * 16).encode("utf-16"), 1, "an AWS access key"),
        ("bare.txt", KEY.encode("utf-16-be"), 1, "a private key"),
        ("le.txt", b"x\0\n\0" + KEY.encode("utf-16-le"), 2, "a private key"),
        (
            "k.der",
            bytes.fromhex("308204bd020100300d06092a864886f70d0101010500"),
            1,
            "a private key",
        ),
        ("r.der", bytes.fromhex("308204a30201000282010100bb"), 1, "a private key"),
        ("ssh2", "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\n", 1, "a private key"),
        ("login", "machine h login me password p\n", 1, "a login of netrc"),
        (
            "config.json",
            '{"auths": {"h": {"auth": "dXNlcjpwYXNzd29yZA=="}}}',
            1,
            "a login of Docker",
        ),
        ("pulumi.txt", "pul-" + "0a" * 20, 1, "a Pulumi token"),
        ("wandb.sh", f"export WANDB_API_KEY={'0a' * 20}\n", 1, "a Weights & Biases key"),
        ("boto.cfg", f"aws_secret_access_key = {'a' * 40}\n", 1, "an AWS secret key"),
        ("c.json", '{"client_secret": "x"}', 1, "an OAuth client's secret"),
    ],
)
def test_a_file_that_holds_a_key_is_refused_by_its_line(tmp_path, name, text, line, what):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BundleError, match=f"^train/{name}: line {line} holds {what}, "):
        bundle.source_files(folder)


def test_an_allowed_line_does_not_count_as_a_key(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    text = f"TOKEN = 'ghp_{'a' * 36}'  # pragma: allowlist secret\n"
    (folder / "test_tokens.py").write_text(text)
    assert list(bundle.source_files(folder)) == ["test_tokens.py"]
    (folder / "more.py").write_text(text + f"OTHER = 'hf_{'b' * 34}'\n")
    with pytest.raises(BundleError, match="more.py: line 2 "):
        bundle.source_files(folder)


@pytest.mark.parametrize(
    "text",
    [
        "x = 'sk-learn-contrib-imbalanced-learn'  # hf_hub, gh_actions, AKIAB\n",
        "url = f'https://{user}:{password}@host/'; git = 'ssh://git@host:22/o/r'\n",
        '{"client_secret": "$SECRET", "private_key": ""}\n',
        "commit 0123456789abcdef0123456789abcdef01234567\n",
        "this machine needs a login and a password\nWANDB_API_KEY = os.environ['KEY']\n",
        "a\0b\0" * 3 + "\0\0\0 some other bytes of a file that is none of text",
    ],
)
def test_what_only_resembles_a_key_is_delivered(tmp_path, text):
    folder = tmp_path / "train"
    folder.mkdir()
    (folder / "train.py").write_text(text)
    assert list(bundle.source_files(folder)) == ["train.py"]


def test_a_trainer_of_the_checkout_with_a_token_is_refused(checkout):
    (checkout / "outlast" / "trainers" / "mine.py").write_text(f"import os\nT = 'hf_{'a' * 34}'\n")
    with pytest.raises(
        BundleError, match="^outlast/trainers/mine.py: line 2 holds a Hugging Face token"
    ):
        bundle.pack(checkout)
