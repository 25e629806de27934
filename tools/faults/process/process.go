// Package process runs services and shards as processes of their own, and ends, freezes and wakes them as told.
//
// As a kubelet does, it starts a process again whenever it has ended, until it is told not to.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/clusterring/clusterring/tools/faults/record"
	supervise "github.com/clusterring/clusterring/tools/localplane/process"
)

// again is the pause before a process that has ended by itself is started again.
const again = 300 * time.Millisecond

// Spec says what to run.
type Spec struct {
	// Name is that of the process.
	Name string
	// Path is the binary, Args returns its arguments; it is called for each life anew.
	Path string
	Args func() []string
	// LogFile gets standard output and error of all its lives.
	LogFile string
}

// Life is one life of a process.
type Life struct {
	PID int
	// Ended is when it was seen to be gone, by [record.Now]; zero while it runs.
	Ended time.Duration
	// Err is how it ended; nil while it runs and after exit code 0. Told says that this is what it was told.
	Err  error
	Told bool
}

// Process is a process that is kept running. [Start] makes it. It is safe for concurrent use.
type Process struct {
	Spec
	log  *os.File
	over chan struct{} // closed when it will not be started again and is gone

	mu      sync.Mutex
	cmd     *exec.Cmd
	exited  chan struct{}
	told    bool // of the present life
	retired chan struct{}
	lives   []Life
}

// Start starts a process and keeps it running.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.Name, err)
	}
	p := &Process{Spec: spec, log: log, over: make(chan struct{}), retired: make(chan struct{})}
	if err := p.begin(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	go p.keep()
	return p, nil
}

// begin begins a life.
func (p *Process) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd := exec.Command(p.Path, p.Args()...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	// In a process group of its own, a Ctrl-C at the terminal reaches the parent alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd, p.exited, p.told = cmd, make(chan struct{}), false
	p.lives = append(p.lives, Life{PID: cmd.Process.Pid})
	return nil
}

// keep waits for the end of each life and begins the next one.
func (p *Process) keep() {
	defer close(p.over)
	defer func() { _ = p.log.Close() }() // nothing is written any more
	for {
		err := p.cmd.Wait()
		p.mu.Lock()
		life := &p.lives[len(p.lives)-1]
		life.Ended, life.Err, life.Told = record.Now(), err, p.told
		told := p.told
		close(p.exited)
		p.mu.Unlock()

		pause := again
		if told {
			pause = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-p.retired:
			timer.Stop()
			return
		default:
		}
		select {
		case <-p.retired:
			timer.Stop()
			return
		case <-timer.C:
		}
		if p.begin() != nil {
			return
		}
	}
}

// retire keeps the process from being started again. Callers hold mu.
func (p *Process) retire() {
	select {
	case <-p.retired:
	default:
		close(p.retired)
	}
}

// Kill ends the process (SIGKILL), waits until it is gone and lets it be started again.
func (p *Process) Kill() {
	p.mu.Lock()
	exited := p.exited
	p.signal(syscall.SIGKILL)
	p.mu.Unlock()
	<-exited
}

// Retire ends the process for good, by the signal, and waits until it is gone. If that takes longer than the given time, it
// is killed, and Retire returns an error.
func (p *Process) Retire(s syscall.Signal, within time.Duration) error {
	p.mu.Lock()
	p.retire()
	p.signal(s)
	p.mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.over:
		return nil
	case <-timer.C:
		p.mu.Lock()
		p.signal(syscall.SIGKILL)
		p.mu.Unlock()
		<-p.over
		return fmt.Errorf("%s did not end in %s after %s", p.Name, within, s)
	}
}

// Freeze stops the process (SIGSTOP), waits until none of its threads runs any more, and says of which life.
func (p *Process) Freeze() (pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pid = p.cmd.Process.Pid
	_ = p.cmd.Process.Signal(syscall.SIGSTOP) // one that is gone is frozen enough
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for supervise.SomeThreadRuns(pid) {
		<-ticker.C
	}
	return pid
}

// Thaw lets a frozen process go on (SIGCONT).
func (p *Process) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // see Freeze
}

// Quit keeps the process from being started again once it ends by itself.
func (p *Process) Quit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire()
}

// Over is closed when the process is gone for good.
func (p *Process) Over() <-chan struct{} { return p.over }

// signal sends a signal; callers hold mu.
func (p *Process) signal(s syscall.Signal) {
	p.told = true
	_ = p.cmd.Process.Signal(s) // one that is gone has ended already
}

// Lives returns all lives so far; the last one is the present one.
func (p *Process) Lives() []Life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.lives)
}
