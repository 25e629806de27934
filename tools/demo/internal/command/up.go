package command

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/lab/commandline"
)

// upper is one demo up.
type upper struct{ *common }

func (c *common) newUp() *cobra.Command {
	u := &upper{c}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start everything, leave it running, and print how to use it",
		Long: `up starts a control plane, the services, and three shards in the background, creates some objects, and prints how to use the system:
with kubectl, with grpcurl, and by killing and adding shards. "demo down" stops it. Only one such demo can run at a time.`,
		Example: `  make up          builds everything, then runs this
  bin/demo up
  bin/demo down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return u.run(cmd.Context()) },
	}
	u.add(cmd.Flags(), defaultUpDir())

	return cmd
}

// defaultUpDir is always the same, so that an exported kubeconfig path stays valid.
func defaultUpDir() string {
	return filepath.Join(os.TempDir(), "clusterring-demo-"+strconv.Itoa(os.Getuid()))
}

func (u *upper) run(ctx context.Context) error {
	if err := u.prepare(ctx, "kubectl"); err != nil {
		return err
	}

	before, err := u.registry.Up()
	if err != nil {
		return err
	}

	if before != nil && before.Alive() {
		u.console.Text("The demo is already running.")
		return u.explain()
	}

	if before != nil {
		u.console.Note("removing what a killed demo has left in %s", before.Dir)

		if err := before.Remove(ctx); err != nil {
			return err
		}
	}

	return u.start(ctx)
}

// explain prints how to use the running system.
func (u *upper) explain() error {
	text, err := saved(u.registry, usageFile)
	if err == nil {
		u.console.Text(text)
	}

	return err
}

// start starts demo serve in the background, and shows its output, which ends when everything runs.
func (u *upper) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}

	output, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe for the output of demo serve: %w", err)
	}
	defer func() { _ = output.Close() }() // was only read

	cmd := exec.Command(self, "serve", "--bin-dir="+u.binDir, "--assets="+u.assets, "--state-dir="+cmp.Or(u.stateDir, defaultUpDir()))
	cmd.Stdout, cmd.Stderr = in, in

	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this process and its terminal
	if err := errors.Join(cmd.Start(), in.Close()); err != nil {
		return fmt.Errorf("start demo serve: %w", err)
	}

	unwatch := context.AfterFunc(ctx, func() {
		u.console.Note("stopping everything")

		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	})
	defer unwatch()

	for lines := bufio.NewScanner(output); lines.Scan(); {
		u.console.Text(lines.Text())
	}

	if ctx.Err() == nil && u.explain() == nil {
		return nil
	}

	_ = cmd.Wait() // the state tells more

	if ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return fmt.Errorf("%w: demo serve has ended: %s", commandline.ErrShown, cmd.ProcessState)
}
