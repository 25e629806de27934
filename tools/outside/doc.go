// Package outside checks that the modules of this repository serve people who do not have it: its test imports and installs them as
// the go command finds them under a tag, without the workspace.
package outside
