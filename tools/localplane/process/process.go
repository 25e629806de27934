// Package process runs programs of this repository as processes of their own, each with its log in a file.
package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// freezeTimeout is how long the threads of a process may take to stop.
const freezeTimeout = 10 * time.Second

// Spec says what to run.
type Spec struct {
	// Name is that of the process among those of its owner.
	Name string
	// Path is the binary, Args are its arguments.
	Path string
	Args []string
	// LogFile gets standard output and error, after what it holds already.
	LogFile string
}

// Command returns the command line as one would type it into a shell.
func (s Spec) Command() string { return Quote(append([]string{s.Path}, s.Args...)...) }

// Process is a process that was started. It is safe for concurrent use.
type Process struct {
	Spec
	cmd     *exec.Cmd
	told    atomic.Bool // it may end
	frozen  atomic.Bool
	exited  chan struct{}
	endedAt time.Time // valid once exited is closed, as is err
	err     error
}

// Start starts a process in a process group of its own, so that Ctrl-C at a terminal does not reach it: who starts it, stops
// it. onDeath, if not nil, is called from another goroutine if the process ends though nobody has told it to.
func Start(spec Spec, onDeath func(*Process)) (*Process, error) {
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.Name, err)
	}
	p := &Process{Spec: spec, cmd: exec.Command(spec.Path, spec.Args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", spec.Name, err), log.Close())
	}
	go func() {
		p.err = errors.Join(p.cmd.Wait(), log.Close())
		p.endedAt = time.Now()
		close(p.exited)
		if !p.told.Load() && onDeath != nil {
			onDeath(p)
		}
	}()
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// EndedAt returns when the process ended, and the zero time while it runs.
func (p *Process) EndedAt() time.Time {
	if p.Running() {
		return time.Time{}
	}
	return p.endedAt
}

// Err returns how the process ended: nil while it runs and after exit code 0.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	return p.err
}

// Terminate asks the process to stop (SIGTERM) and returns at once. One that is frozen is thawed, so that it can.
func (p *Process) Terminate() error {
	p.told.Store(true)
	err := p.signal(syscall.SIGTERM)
	if p.frozen.Load() {
		err = errors.Join(err, p.Thaw())
	}
	return err
}

// Kill ends the process (SIGKILL), frozen or not, and returns when it is gone.
func (p *Process) Kill() error {
	p.told.Store(true)
	err := p.signal(syscall.SIGKILL)
	if err == nil {
		<-p.exited
	}
	return err
}

// MayEnd says that from now on the process may end by itself: its owner has done something to it that should make it.
func (p *Process) MayEnd() { p.told.Store(true) }

// Freeze stops the process from outside (SIGSTOP): it does nothing at all until it is thawed, and does not know. Freeze
// returns when none of its threads runs any more, or an error if that takes too long or the process is gone. Where the system
// does not tell what its threads do, they are taken for stopped.
func (p *Process) Freeze() error {
	p.frozen.Store(true)
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	timeout := time.NewTimer(freezeTimeout)
	defer timeout.Stop()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for SomeThreadRuns(p.PID()) {
		select {
		case <-ticker.C:
		case <-timeout.C:
			return fmt.Errorf("%s still runs %s after SIGSTOP", p.Name, freezeTimeout)
		}
	}
	if !p.Running() {
		return fmt.Errorf("%s has ended before it could be frozen", p.Name)
	}
	return nil
}

// Thaw lets a frozen process go on (SIGCONT), and returns at once.
func (p *Process) Thaw() error {
	p.frozen.Store(false)
	return p.signal(syscall.SIGCONT)
}

// SomeThreadRuns says whether a thread of the process is neither stopped nor gone. Where the system does not tell, none does.
func SomeThreadRuns(pid int) bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		_, state, found := strings.Cut(string(content), ") ") // after the name, which is in parentheses
		return err == nil && found && !strings.ContainsAny(state[:1], "TtZX")
	})
}

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// Stop asks the process to stop, waits, and kills it if it has not stopped in time, which is an error.
func (p *Process) Stop(within time.Duration) error {
	if !p.Running() {
		return nil
	}
	if err := p.Terminate(); err != nil {
		return err
	}
	return p.AwaitExit(within)
}

// AwaitExit waits for a process that was told to stop, and kills it if it has not stopped in time, which is an error.
func (p *Process) AwaitExit(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop in %s and was killed", p.Name, within), p.Kill())
	}
}

// Tail returns the last lines of a log file; one that cannot be read has none.
func Tail(file string, lines int) string {
	content, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(content)) == 0 {
		return ""
	}
	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// Find returns the lines of a log file that have one of the words in them, in whatever case, at most limit of them.
func Find(file string, limit int, words ...string) ([]string, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("search a log: %w", err)
	}
	defer func() { _ = in.Close() }() // was only read

	var found []string
	lines := bufio.NewReader(in)
	for len(found) < limit {
		line, err := lines.ReadString('\n')
		lower := strings.ToLower(line)
		for _, word := range words {
			if strings.Contains(lower, strings.ToLower(word)) {
				found = append(found, strings.TrimSpace(line))
				break
			}
		}
		if err != nil {
			break // the end of the file
		}
	}
	return found, nil
}

// Quote returns words as a shell takes them for one command.
func Quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = word
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\$`&|;<>()[]{}*?!#~") {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
