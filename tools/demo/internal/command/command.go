// Package command implements the command line of the demo.
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/commandline"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// Main runs the command line of this process and returns its exit code.
func Main() int { return commandline.Run(New()) }

const long = `demo runs all of ClusterRing on this machine: etcd, an API server, a controller manager, the four services (each with a
token of its own service account), and several shards of an example controller. Each is a process on a free port of 127.0.0.1. The demo
needs no cluster, no containers, and no network.

  demo run    demonstrates each guarantee in eleven steps, verifies it, and leaves nothing behind
  demo modes  runs other ways to share the objects of a controller, such as standby shards and keys
  demo up     runs the same system until Ctrl-C, so that you can experiment
  demo env    prints shell variables for the system that demo up runs
  demo down   stops all demos, and removes what killed demos have left behind

Run "make build" to build the binaries (--bin-dir), and "make control-plane" to build those of the control plane (--assets).`

// New returns the command.
func New() *cobra.Command {
	c := &common{}
	root := commandline.Root("demo", "Run all of ClusterRing on this machine and verify its guarantees", long)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { c.console = report.NewConsole(cmd.OutOrStdout()) }
	root.AddCommand(c.newRun(), c.newModes(), c.newUp(), c.newDown(), c.newEnv())

	return root
}

// common is what all commands share.
type common struct {
	console *report.Console

	binDir, assets string
}

func (c *common) add(flags *pflag.FlagSet) {
	flags.StringVar(&c.binDir, "bin-dir", "bin", "`directory` with the binaries that make build builds")
	flags.StringVar(&c.assets, "assets", "",
		"`directory` with etcd, kube-apiserver and kube-controller-manager "+
			"(default: $KUBEBUILDER_ASSETS, else those of make control-plane, built if necessary)")
}

// prepare makes paths absolute and checks the flags before anything starts. The others are binaries beside those of the
// system.
func (c *common) prepare(ctx context.Context, others ...string) (err error) {
	if localplane.Root() == "" {
		return errors.New("run this command in the repository: it installs manifests from deploy/")
	}

	if c.binDir, err = filepath.Abs(c.binDir); err != nil {
		return fmt.Errorf("find --bin-dir: %w", err)
	}

	if err := process.CheckBinaries(c.binDir, services.BuildHint,
		slices.Concat(services.All, []string{"example"}, others)...); err != nil {
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

	return nil
}

func (c *common) options(stateDir string) localsystem.Options {
	return localsystem.Options{BinDir: c.binDir, Assets: c.assets, StateDir: stateDir, Console: c.console}
}
