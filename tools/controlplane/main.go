// Command controlplane makes sure that the binaries of a Kubernetes control plane are on this machine, and prints the
// directory that holds them: etcd, kube-apiserver, kube-controller-manager and kubectl.
//
// They are built from Go modules, once, into the user's cache. A directory named by KUBEBUILDER_ASSETS is used
// instead, as it is. This command needs the standard library alone, so that it costs nothing when there is nothing to do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/clusterring/clusterring/tools/dev/toolcache"
)

const (
	kubernetesMajor   = "1"
	kubernetesMinor   = "37"
	kubernetesVersion = "v" + kubernetesMajor + "." + kubernetesMinor + ".1" // that of k8s.io/kubernetes in go.mod
	assetsVariable    = "KUBEBUILDER_ASSETS"
)

func main() {
	os.Exit(start())
}

// start returns the exit code.
func start() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	builder := &toolcache.Builder{Progress: toolcache.Console(os.Stderr)}
	switch err := run(ctx, os.Args[1:], os.Stdout, builder); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

// run prints the directory of the binaries to out, after the builder has built them if need be.
func run(ctx context.Context, args []string, out io.Writer, builder *toolcache.Builder) error {
	flags := flag.NewFlagSet("controlplane", flag.ContinueOnError)
	output := flags.String("o", "", "build into this new `directory` (default: keep in the user's cache, build only if missing)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: the command takes flags only", flags.Arg(0))
	}
	dir, err := directory(ctx, *output, builder)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, dir)
	return err
}

func directory(ctx context.Context, output string, builder *toolcache.Builder) (string, error) {
	if output != "" {
		dir, err := filepath.Abs(output)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", output, err)
		}
		return dir, builder.BuildIn(ctx, controlPlane(), dir)
	}
	if dir := os.Getenv(assetsVariable); dir != "" {
		return dir, checkAssets(dir)
	}
	if builder.Cache == "" {
		cache, err := toolcache.DefaultCache()
		if err != nil {
			return "", err
		}
		builder.Cache = cache
	}
	return builder.Build(ctx, controlPlane())
}

// checkAssets tells what a directory of ready-made binaries lacks.
func checkAssets(dir string) error {
	var missing []string
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		if !toolcache.Executable(filepath.Join(dir, name)) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s is %s, which has no executable %s: put it there, or unset %s to build everything from source",
			assetsVariable, dir, strings.Join(missing, ", "), assetsVariable)
	}
	return nil
}

// controlPlane is the program to build, from this module. The version is stamped as Kubernetes' own build does.
func controlPlane() toolcache.Program {
	var stamps []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		stamps = append(stamps, "-X "+pkg+".gitVersion="+kubernetesVersion,
			"-X "+pkg+".gitMajor="+kubernetesMajor, "-X "+pkg+".gitMinor="+kubernetesMinor, "-X "+pkg+".gitTreeState=clean")
	}
	return toolcache.Program{
		Name:    "controlplane",
		Version: kubernetesVersion,
		Module:  ".",
		Package: "./cmd/controlplane",
		Binary:  "controlplane",
		Links:   []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"},
		LDFlags: strings.Join(stamps, " "),
	}
}
