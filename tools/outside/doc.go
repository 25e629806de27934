// Package outside tests the released modules as their users get them: it imports and installs them through the go
// command at a version tag, without the workspace.
package outside
