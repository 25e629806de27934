package localplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// assetsVariable names a directory with ready-made binaries, as in controller-runtime.
const assetsVariable = "KUBEBUILDER_ASSETS"

// Root returns the root directory of the repository that contains the working directory, and "" outside of it.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}

	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}

		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}

		dir = parent
	}
}

// Binaries returns the directory that contains etcd, kube-apiserver, and kube-controller-manager: $KUBEBUILDER_ASSETS if it is set, or else
// the directory of tools/controlplane, which builds missing binaries into the user's cache. The first build takes minutes and prints its
// progress to progress, which may be nil.
func Binaries(ctx context.Context, progress io.Writer) (string, error) {
	if dir := os.Getenv(assetsVariable); dir != "" {
		return dir, checkBinary(dir, "etcd", "kube-apiserver")
	}

	root := Root()
	if root == "" {
		return "", fmt.Errorf("the working directory is not in the repository: cannot find tools/controlplane; set $%s to a directory with etcd and kube-apiserver", assetsVariable)
	}

	if progress == nil {
		progress = io.Discard
	}

	var stdout bytes.Buffer

	cmd := exec.CommandContext(ctx, "go", "run", ".")
	cmd.Dir = filepath.Join(root, "tools", "controlplane")

	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.Stdout, cmd.Stderr = &stdout, progress

	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the control plane (go run . in %s): %w", cmd.Dir, err)
	}

	dir := strings.TrimSpace(stdout.String())

	return dir, checkBinary(dir, "etcd", "kube-apiserver", "kube-controller-manager")
}

// checkBinary returns an error for each binary that is missing in dir.
func checkBinary(dir string, names ...string) error {
	var errs []error

	for _, name := range names {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("no %s in the directory of control plane binaries: %w", name, err))
		}
	}

	return errors.Join(errs...)
}
