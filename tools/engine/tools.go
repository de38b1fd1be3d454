//go:build tools

// Package engine pins the Pulumi engine that tools/setup.py builds where its installer cannot be reached.
package engine

import _ "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
