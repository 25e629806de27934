// Package command is the command line of the demo.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/lab/localplane"
)

// Main runs the command line of this process and returns its exit code.
func Main() int { return commandline.Run(New(state.Default())) }

const long = `demo runs all of ClusterRing on this machine: etcd, an API server and a controller manager, the four services (each
with a token of its own service account), and several shards of an example controller, all as processes of their own on
free ports of 127.0.0.1. Nothing else is needed: no cluster, no containers, no network.

  demo run    tells the whole story in ten steps, each with checks that can fail, and leaves nothing behind
  demo up     starts the same and leaves it running, for you to play with
  demo env    prints variables for your shell that lead to what demo up has started
  demo down   stops what demo up has started, and whatever a killed demo has left behind
  demo docs   runs the commands of a page of documentation and writes down what they print

The binaries come from "make build" (--bin-dir), those of the control plane from "make control-plane" (--assets).`

// New returns the command. The registry is where it looks for other demos, and records its own.
func New(registry state.Registry) *cobra.Command {
	root := commandline.Root("demo", "Run all of ClusterRing on this machine and see it keep its promises", long)
	root.AddCommand(newRun(registry), newUp(registry), newDown(registry), newEnv(registry), newDocs(registry), newServe(registry))
	return root
}

// common are the flags of what starts a system.
type common struct {
	binDir, assets, stateDir string
}

func (c *common) add(flags *pflag.FlagSet, defaultState string) {
	flags.StringVar(&c.binDir, "bin-dir", "bin", "`directory` with the binaries that make build makes")
	flags.StringVar(&c.assets, "assets", "",
		"`directory` with etcd, kube-apiserver and kube-controller-manager (default: $KUBEBUILDER_ASSETS, else those of make control-plane, which are built if need be)")
	flags.StringVar(&c.stateDir, "state-dir", "",
		"new `directory` for data, logs and kubeconfigs, which is removed in the end (default: "+defaultState+")")
}

// prepare makes paths absolute and checks what can be checked before anything is started.
func (c *common) prepare(ctx context.Context, others ...string) error {
	if localplane.Root() == "" {
		return errors.New("run this in the repository: the manifests that it installs are in deploy/")
	}
	var err error
	if c.binDir, err = filepath.Abs(c.binDir); err != nil {
		return fmt.Errorf("find --bin-dir: %w", err)
	}
	if err := localsystem.CheckBinaries(c.binDir, others...); err != nil {
		return err
	}
	if c.assets == "" {
		if c.assets, err = localplane.Binaries(ctx, os.Stderr); err != nil {
			return fmt.Errorf("get the control plane: %w", err)
		}
	}
	if c.assets, err = filepath.Abs(c.assets); err != nil {
		return fmt.Errorf("find --assets: %w", err)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		if _, err := os.Stat(filepath.Join(c.assets, name)); err != nil {
			return fmt.Errorf("there is no %s in %s: run make control-plane, and give --assets the directory that it prints", name, c.assets)
		}
	}
	return nil
}

func (c *common) options(stateDir string, console *report.Console) localsystem.Options {
	return localsystem.Options{BinDir: c.binDir, Assets: c.assets, StateDir: stateDir, Console: console}
}
