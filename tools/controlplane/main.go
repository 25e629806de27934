// Command controlplane ensures that the binaries of a Kubernetes control plane are on this machine, and prints the
// directory that contains them: etcd, kube-apiserver, and kube-controller-manager. With the argument kubectl, it does
// the same for kubectl.
//
// They are built from Go modules, once, into the user's cache. A directory named by KUBEBUILDER_ASSETS replaces
// the control plane; nothing in it is changed. This command needs only the standard library, so that it is quick when
// there is nothing to do.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

const (
	kubernetesMajor   = "1"
	kubernetesMinor   = "37"
	kubernetesVersion = "v" + kubernetesMajor + "." + kubernetesMinor + ".1" // that of k8s.io/kubernetes in go.mod
	assetsVariable    = "KUBEBUILDER_ASSETS"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, os.Args[1:], os.Stdout, os.Stderr)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// start prints the directory of the binaries to out, after it has built them if need be.
func start(ctx context.Context, args []string, out, progress io.Writer) error {
	p, ready := controlPlane, os.Getenv(assetsVariable)

	switch {
	case slices.Equal(args, []string{kubectl.name}):
		p, ready = kubectl, ""
	case len(args) > 0:
		return fmt.Errorf("unexpected arguments %q: the only argument is kubectl", args)
	}

	dir, err := ready, checkAssets(ready)
	if ready == "" {
		dir, err = p.cached(ctx, progress)
	}

	if err != nil {
		return err
	}

	_, err = fmt.Fprintln(out, dir)

	return err
}

// checkAssets returns an error if a directory of ready-made binaries lacks one.
func checkAssets(dir string) error {
	var missing []string

	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
	}

	if len(missing) > 0 {
		return fmt.Errorf("%s is %s, which has no executable %s: put it there, or unset %s to build everything from source",
			assetsVariable, dir, strings.Join(missing, ", "), assetsVariable)
	}

	return nil
}
