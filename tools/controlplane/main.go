// Command controlplane ensures that the binaries of a Kubernetes control plane are on this machine, and prints the directory that
// contains them: etcd, kube-apiserver, and kube-controller-manager. With the argument kubectl, it does the same for kubectl.
//
// They are built from Go modules, once, into the user's cache. A directory named by KUBEBUILDER_ASSETS replaces
// the control plane; nothing in it is changed. This command needs only the standard library, so that it is quick when there is nothing
// to do.
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

	program, ready := controlPlane(), os.Getenv(assetsVariable)

	switch {
	case flags.NArg() == 1 && flags.Arg(0) == "kubectl":
		program, ready = kubectl(), ""
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: the only argument is kubectl", flags.Arg(0))
	}

	if *output == "" && ready != "" {
		if err := checkAssets(ready); err != nil {
			return err
		}

		_, err := fmt.Fprintln(out, ready)

		return err
	}

	dir, err := directory(ctx, program, *output, builder)
	if err != nil {
		return err
	}

	_, err = fmt.Fprintln(out, dir)

	return err
}

// directory returns the directory that a program was built into: the output if it is set, or else one in the cache.
func directory(ctx context.Context, program toolcache.Program, output string, builder *toolcache.Builder) (string, error) {
	if output != "" {
		dir, err := filepath.Abs(output)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", output, err)
		}

		return dir, builder.BuildIn(ctx, program, dir)
	}

	if builder.Cache == "" {
		cache, err := toolcache.DefaultCache()
		if err != nil {
			return "", err
		}

		builder.Cache = cache
	}

	return builder.Build(ctx, program)
}

// checkAssets returns an error if a directory of ready-made binaries lacks one.
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

// controlPlane is the control plane as one program of this module.
func controlPlane() toolcache.Program {
	p := program("controlplane")
	p.Links = []string{"etcd", "kube-apiserver", "kube-controller-manager"}

	return p
}

// kubectl is kubectl.
func kubectl() toolcache.Program { return program("kubectl") }

// program returns a program of this module. The version is stamped as in the build of Kubernetes.
func program(name string) toolcache.Program {
	var stamps []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		stamps = append(stamps, "-X "+pkg+".gitVersion="+kubernetesVersion,
			"-X "+pkg+".gitMajor="+kubernetesMajor, "-X "+pkg+".gitMinor="+kubernetesMinor, "-X "+pkg+".gitTreeState=clean")
	}

	return toolcache.Program{
		Name: name, Version: kubernetesVersion, Module: ".", Package: "./cmd/" + name, Binary: name, LDFlags: strings.Join(stamps, " "),
	}
}
