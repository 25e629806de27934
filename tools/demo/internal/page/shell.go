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

// Shell is a POSIX shell that runs one command after the other, so that a later one finds the variables of an earlier one. It
// is not for concurrent use.
type Shell struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	done   *bufio.Reader // a line after each command
	script string        // file that the shell reads a command from
	output string        // file that it prints to
}

// NewShell starts a shell. Its files are in dir, which must exist and be empty; its commands run in a directory of their own in
// there. env is its whole environment, each entry as in NAME=value. Close ends it.
func NewShell(dir string, env []string) (*Shell, error) {
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, fmt.Errorf("make the working directory of the shell: %w", err)
	}

	s := &Shell{cmd: exec.Command("sh"), script: filepath.Join(dir, "command"), output: filepath.Join(dir, "output")}
	s.cmd.Dir = work
	s.cmd.Env = slices.Concat(env, []string{"PAGE_COMMAND=" + s.script, "PAGE_OUTPUT=" + s.output})
	// What it leaves running in the background is in its group, and ends with it.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	input, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make the input of the shell: %w", err)
	}

	done, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make the output of the shell: %w", err)
	}

	s.input, s.done = input, bufio.NewReader(done)
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}

	return s, nil
}

// Run runs a command and returns what it prints to standard output and error; its exit code is not looked at. It is an error if
// the shell ends, as by a syntax error, or if ctx ends before the command does; the shell is of no use then.
func (s *Shell) Run(ctx context.Context, command string) (string, error) {
	if err := os.WriteFile(s.script, []byte(command+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write down the command: %w", err)
	}

	over := context.AfterFunc(ctx, s.kill)
	defer over()

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
		return "", fmt.Errorf("read what a command has printed: %w", reading)
	}

	return string(output), nil
}

// kill ends the shell with all that it has started.
func (s *Shell) kill() {
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // if there is nobody left, so much the better
}

// Close ends the shell and everything that its commands have left running in the background.
func (s *Shell) Close() error {
	s.kill()

	closing := s.input.Close()
	if err := s.cmd.Wait(); err != nil {
		if _, killed := errors.AsType[*exec.ExitError](err); !killed {
			return fmt.Errorf("end the shell: %w", err)
		}
	}

	if closing != nil && !errors.Is(closing, os.ErrClosed) {
		return fmt.Errorf("end the input of the shell: %w", closing)
	}

	return nil
}
