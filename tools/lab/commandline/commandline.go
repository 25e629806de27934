// Package commandline runs the command lines of tools that start many processes and must stop all of them.
package commandline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

var (
	// ErrInterrupted is the cause of the end of a command's context when this process receives SIGINT or SIGTERM.
	ErrInterrupted = errors.New("interrupted")
	// ErrShown is part of the error of a command that has already printed what happened.
	ErrShown = errors.New("failed, as printed above")
)

// exitInterrupted is 128 + SIGINT, as in shells.
const exitInterrupted = 130

// Root returns the root command of a tool. Without a subcommand, it prints the help.
func Root(use, short, long string) *cobra.Command {
	root := &cobra.Command{
		Use:           use,
		Short:         short,
		Long:          long,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, c.CommandPath())
	})

	return root
}

// Run runs the command with the arguments of this process, prints its error, and returns the exit code. The first
// signal ends the context of the command; further signals have no effect, so that the command can stop what it started.
// Logs of client libraries are discarded.
func Run(command *cobra.Command) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)

	signals := make(chan os.Signal, 1)

	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	defer signal.Stop(signals)
	go func() {
		<-signals
		cancel(ErrInterrupted)
	}()
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())

	err := command.ExecuteContext(ctx)

	interrupted, shown := errors.Is(err, ErrInterrupted), errors.Is(err, ErrShown)
	switch {
	case err == nil:
		return 0
	case interrupted && !shown:
		fmt.Fprintln(os.Stderr, "Interrupted: everything was stopped.")
	case !shown:
		fmt.Fprintln(os.Stderr, "error:", err)
	}

	if interrupted {
		return exitInterrupted
	}

	return 1
}

// Output runs a program and returns its output. The error of a failed program contains its standard error.
func Output(program *exec.Cmd) (string, error) {
	out, err := program.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(program.Args, " "), err)
	}

	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}

	return string(out), err
}
