package page

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
)

// Shell is a POSIX shell that runs commands one after the other, so that a command finds the variables of earlier ones. It is not safe for
// concurrent use.
type Shell struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	done   *bufio.Reader // a line after each command
	script string        // file that the shell reads a command from
	output string        // file that it prints to
}

// NewShell starts a shell. Its files are in dir, which must exist and be empty; its commands run in a new directory in there. env is its
// whole environment, each entry as in NAME=value. Close ends it.
func NewShell(dir string, env []string) (*Shell, error) {
	s := &Shell{cmd: exec.Command("sh"), script: filepath.Join(dir, "command"), output: filepath.Join(dir, "output")}
	s.cmd.Dir = filepath.Join(dir, "work")
	s.cmd.Env = slices.Concat(env, []string{"PAGE_COMMAND=" + s.script, "PAGE_OUTPUT=" + s.output})
	// What it leaves running in the background is in its group, and ends with it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	input, errOfInput := s.cmd.StdinPipe()
	done, errOfOutput := s.cmd.StdoutPipe()

	if err := errors.Join(errOfInput, errOfOutput, os.Mkdir(s.cmd.Dir, 0o700), s.cmd.Start()); err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}

	s.input, s.done = input, bufio.NewReader(done)

	return s, nil
}

// Run runs a command and returns its standard output and error. It ignores the exit code. It returns an error if the shell ends, for example
// because of a syntax error, or if ctx ends before the command does; the shell cannot be used then.
func (s *Shell) Run(ctx context.Context, command string) (string, error) {
	if err := os.WriteFile(s.script, []byte(command+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("save the command: %w", err)
	}

	defer context.AfterFunc(ctx, s.kill)()

	_, err := io.WriteString(s.input, `. "$PAGE_COMMAND" </dev/null >"$PAGE_OUTPUT" 2>&1; echo`+"\n")
	if err == nil {
		_, err = s.done.ReadString('\n')
	}

	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: %w", command, context.Cause(ctx))
	}

	output, reading := os.ReadFile(s.output)
	if err != nil {
		return "", fmt.Errorf("the shell has ended at the command %s: %w\n%s", command, err, output)
	}

	if reading != nil {
		return "", fmt.Errorf("read the output of a command: %w", reading)
	}

	return string(output), nil
}

// kill ends the shell with everything that it has started.
func (s *Shell) kill() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // nothing may be left
}

// Close ends the shell and everything that its commands have left running in the background.
func (s *Shell) Close() error {
	s.kill()

	err := s.cmd.Wait() // also closes the pipes
	if _, killed := errors.AsType[*exec.ExitError](err); err != nil && !killed {
		return fmt.Errorf("end the shell: %w", err)
	}

	return nil
}
