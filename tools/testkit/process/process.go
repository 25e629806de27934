// Package process supervises processes that run programs of this repository, each with a log file: it starts them,
// waits until they are ready, stops, freezes, and thaws them, and restarts them if requested, as a kubelet does.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"k8s.io/apimachinery/pkg/util/wait"
)

// freezeTimeout limits the time until all threads of a process are stopped.
const freezeTimeout = 10 * time.Second

// Spec describes a process.
type Spec struct {
	// Name identifies the process for its owner.
	Name string
	// Path is the binary, Args are its arguments.
	Path string
	Args []string
	// More, unless nil, returns additional arguments for each life.
	More func() []string
	// LogFile receives the standard output and error of all lives. Existing content is kept.
	LogFile string
	// Again is the pause before a process that exited by itself is restarted. Zero means no restart: one life.
	Again time.Duration
}

// Life is one life of a process: from a start to the exit.
type Life struct {
	PID int
	// Ended is when the process exited; zero while it runs.
	Ended time.Time
	// Err is the exit error; nil while it runs and after exit code 0.
	Err error
	// Told is true if this package sent a signal to end the process.
	Told bool
}

// life is a life with its command.
type life struct {
	Life
	cmd  *exec.Cmd
	gone chan struct{} // closed after the exit
}

// Process is a started process. Create it with [Start]. It is safe for concurrent use.
type Process struct {
	Spec
	onDeath func(*Process)
	log     *os.File
	retired chan struct{} // closed when no further life begins
	over    chan struct{} // closed after the exit for good

	mu             sync.Mutex
	lives          []*life
	mayEnd, frozen bool // frozen applies to the present life
}

// Start starts a process in its own process group, so that Ctrl-C in a terminal does not reach it. The caller must stop
// it. onDeath, if not nil, is called from another goroutine if the process exits for good by itself.
func Start(spec Spec, onDeath func(*Process)) (*Process, error) {
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", spec.Name, err)
	}

	p := &Process{Spec: spec, onDeath: onDeath, log: log, retired: make(chan struct{}), over: make(chan struct{})}
	if err := p.begin(); err != nil {
		return nil, errors.Join(err, log.Close())
	}

	if spec.Again == 0 {
		close(p.retired)
	}

	go p.keep()

	return p, nil
}

// begin begins a life.
func (p *Process) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	if closed(p.retired) {
		return fmt.Errorf("%s is not started again", p.Name)
	}

	args := p.Args
	if p.More != nil {
		args = slices.Concat(args, p.More())
	}

	cmd := exec.Command(p.Path, args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log

	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}

	p.frozen = false
	p.lives = append(p.lives, &life{Life: Life{PID: cmd.Process.Pid}, cmd: cmd, gone: make(chan struct{})})

	return nil
}

// keep waits for the end of each life and begins the next one.
func (p *Process) keep() {
	byItself := p.live()
	for p.startsAgain(byItself) && p.begin() == nil {
		byItself = p.live()
	}

	_ = p.log.Close() // nothing is written any more
	close(p.over)

	if byItself && p.onDeath != nil {
		p.onDeath(p)
	}
}

// live waits for the end of the present life, and reports whether the process exited by itself.
func (p *Process) live() (byItself bool) {
	l := p.present()
	err := l.cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()

	l.Ended, l.Err = time.Now(), err
	close(l.gone)

	return !l.Told && !p.mayEnd
}

// startsAgain waits for the pause before the next life, and reports whether there is one.
func (p *Process) startsAgain(byItself bool) bool {
	if closed(p.retired) || !byItself {
		return !closed(p.retired)
	}

	timer := time.NewTimer(p.Again)
	defer timer.Stop()

	select {
	case <-p.retired:
		return false
	case <-timer.C:
		return true
	}
}

// present returns the present life, or the last one.
func (p *Process) present() *life {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.lives[len(p.lives)-1]
}

// Lives returns all lives so far; the last one is the present one.
func (p *Process) Lives() []Life {
	p.mu.Lock()
	defer p.mu.Unlock()

	lives := make([]Life, len(p.lives))
	for i, l := range p.lives {
		lives[i] = l.Life
	}

	return lives
}

// PID returns the process id of the present life.
func (p *Process) PID() int { return p.present().PID }

// Exited returns a channel that is closed when the process has exited for good.
func (p *Process) Exited() <-chan struct{} { return p.over }

// Running reports whether the process has not yet exited for good.
func (p *Process) Running() bool { return !closed(p.over) }

// EndedAt returns when the process exited for good, and the zero time while it runs.
func (p *Process) EndedAt() time.Time {
	if p.Running() {
		return time.Time{}
	}

	return p.present().Ended
}

// Err returns the exit error of the last life: nil while the process runs and after exit code 0.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}

	return p.present().Err
}

// Terminate sends SIGTERM to stop the process for good, thaws it if it is frozen, and returns immediately.
func (p *Process) Terminate() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retire()

	err := p.tell(syscall.SIGTERM)
	if p.frozen {
		p.frozen = false
		err = errors.Join(err, p.signal(syscall.SIGCONT))
	}

	return err
}

// Kill ends the present life with SIGKILL, and returns after the exit. If the process has more than one life, the next
// one begins immediately.
func (p *Process) Kill() error {
	p.mu.Lock()
	gone := p.lives[len(p.lives)-1].gone

	err := p.tell(syscall.SIGKILL)
	if closed(p.retired) {
		gone = p.over
	}
	p.mu.Unlock()

	if err == nil {
		<-gone
	}

	return err
}

// Destroy ends the process for good with SIGKILL, and returns after the exit.
func (p *Process) Destroy() error {
	p.mu.Lock()
	p.retire()
	err := p.tell(syscall.SIGKILL)
	p.mu.Unlock()

	if err == nil {
		<-p.over
	}

	return err
}

// MayEnd allows the process to exit by itself from now on, and prevents further lives. Call it before an action that
// makes the process exit.
func (p *Process) MayEnd() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.mayEnd = true
	p.retire()
}

// Freeze stops the process with SIGSTOP until it is thawed. It returns when all threads are stopped, or an error if
// that takes too long or the process is gone. Where the system does not report the state of threads, they count as
// stopped.
func (p *Process) Freeze() error {
	p.mu.Lock()
	present := p.lives[len(p.lives)-1]
	p.frozen = true
	err := p.signal(syscall.SIGSTOP)
	p.mu.Unlock()

	if err != nil {
		return err
	}

	err = wait.PollUntilContextTimeout(context.Background(), time.Millisecond, freezeTimeout, true,
		func(context.Context) (bool, error) { return !someThreadRuns(present.PID), nil })
	if err != nil {
		return fmt.Errorf("%s still runs %s after SIGSTOP: %w", p.Name, freezeTimeout, err)
	}

	if closed(present.gone) {
		return fmt.Errorf("%s has ended before it could be frozen", p.Name)
	}

	return nil
}

// Thaw resumes a frozen process with SIGCONT, and returns immediately.
func (p *Process) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.frozen = false

	return p.signal(syscall.SIGCONT)
}

// Stop terminates the process and waits. If the process does not exit in time, Stop kills it and returns an error.
func (p *Process) Stop(within time.Duration) error {
	if !p.Running() {
		return nil
	}

	if err := p.Terminate(); err != nil {
		return err
	}

	timer := time.NewTimer(within)
	defer timer.Stop()

	select {
	case <-p.over:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop in %s and was killed", p.Name, within), p.Destroy())
	}
}

// retire prevents further lives. The caller holds the lock, also for tell and signal.
func (p *Process) retire() {
	if !closed(p.retired) {
		close(p.retired)
	}
}

// tell sends a signal that ends the present life.
func (p *Process) tell(s syscall.Signal) error {
	p.lives[len(p.lives)-1].Told = true
	return p.signal(s)
}

func (p *Process) signal(s syscall.Signal) error {
	if err := p.lives[len(p.lives)-1].cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", s, p.Name, err)
	}

	return nil
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// someThreadRuns reports whether a thread of the process is neither stopped nor gone. It returns false where this is
// unknown.
func someThreadRuns(pid int) bool {
	threads, err := procfs.AllThreads(pid)

	return err == nil && slices.ContainsFunc(threads, func(thread procfs.Proc) bool {
		stat, err := thread.Stat()
		return err == nil && !strings.ContainsAny(stat.State, "TtZX")
	})
}

// CheckBinaries returns an error that lists the binaries missing in the directory. The hint says where they come from.
func CheckBinaries(dir, hint string, names ...string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err == nil && !info.IsDir()
	})
	if len(missing) > 0 {
		return fmt.Errorf("missing in %s: %v; %s", dir, missing, hint)
	}

	return nil
}

// Tail returns the last lines of a log file, empty if it cannot be read.
func Tail(file string, lines int) string {
	content, err := os.ReadFile(file)
	if err != nil || len(bytes.TrimSpace(content)) == 0 {
		return ""
	}

	all := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))

	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}

// Find returns the lines of a log file that contain one of the words in any case, at most limit lines.
func Find(file string, limit int, words ...string) ([]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("search a log: %w", err)
	}

	var found []string

	for line := range bytes.Lines(content) {
		contains := func(word string) bool { return bytes.Contains(bytes.ToLower(line), []byte(strings.ToLower(word))) }
		if len(found) < limit && slices.ContainsFunc(words, contains) {
			found = append(found, string(bytes.TrimSpace(line)))
		}
	}

	return found, nil
}

// Quote returns the words as a command for a POSIX shell.
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

// Ports are below the default range of Linux for outgoing connections (net.ipv4.ip_local_port_range), so that no
// connection takes a port before a process listens there, or while the process restarts.
const lowestPort, highestPort = 10_240, 32_767

// given contains the ports that were returned recently: their users may not listen yet.
var given struct {
	sync.Mutex
	ports []int
}

// FreePorts returns n different addresses of the loopback interface with free ports. It does not return recently
// returned addresses.
func FreePorts(n int) (addresses []string, err error) {
	const tries, remembered = 100, 100 // tries for each port

	given.Lock()
	defer given.Unlock()

	for try := 0; len(addresses) < n; try++ {
		if try == tries*n {
			return nil, fmt.Errorf("find free ports: %w", err)
		}

		port := lowestPort + rand.IntN(highestPort-lowestPort+1) //nolint:gosec // not a secret
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))

		var listener net.Listener
		if listener, err = net.Listen("tcp", address); err != nil {
			continue
		}

		if !slices.Contains(given.ports, port) {
			addresses = append(addresses, address)
			given.ports = append(given.ports[max(0, len(given.ports)-remembered):], port)
		}

		if err := listener.Close(); err != nil {
			return nil, fmt.Errorf("find free ports: %w", err)
		}
	}

	return addresses, nil
}

const (
	// readyTimeout limits the time until a process is ready, answerTimeout the time for one response.
	readyTimeout  = 60 * time.Second
	answerTimeout = 10 * time.Second
	readyPoll     = 50 * time.Millisecond
)

// Readiness is the readiness probe of a process.
type Readiness struct {
	// URL returns status 200 if the process is ready.
	URL string
	// Client sends the requests; nil means http.DefaultClient.
	Client *http.Client
}

// AwaitReady waits at most a minute until the process is ready. The error is the cause of the end of ctx, or
// contains the last response.
func (p *Process) AwaitReady(ctx context.Context, r Readiness) error {
	answer := ""

	err := wait.PollUntilContextTimeout(ctx, readyPoll, readyTimeout, true, func(ctx context.Context) (bool, error) {
		if !p.Running() {
			return false, fmt.Errorf("it has ended: %w", p.End())
		}

		var ok bool

		ok, answer = r.Ask(ctx)

		return ok, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}

	return fmt.Errorf("%s did not become ready (%s): %w", p.Name, answer, err)
}

// End returns how the process exited, as an error also after exit code 0.
func (p *Process) End() error {
	if err := p.Err(); err != nil {
		return err
	}

	return errors.New("exit status 0")
}

// Ask sends one request, and returns the response in one line: the failing checks, if it is a list of checks.
func (r Readiness) Ask(ctx context.Context) (ok bool, answer string) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, http.NoBody)
	if err != nil {
		return false, err.Error()
	}

	client := r.Client
	if client == nil {
		client = http.DefaultClient
	}

	response, err := client.Do(request)
	if err != nil {
		return false, "no answer yet"
	}

	body, _ := io.ReadAll(response.Body)

	_ = response.Body.Close() // was only read
	if response.StatusCode == http.StatusOK {
		return true, "ready"
	}

	var failing []string

	for line := range strings.Lines(string(body)) {
		if check, fails := strings.CutPrefix(line, "[-]"); fails {
			failing = append(failing, strings.TrimSpace(check))
		}
	}

	if failing == nil {
		return false, strings.Join(strings.Fields(string(body)), " ")
	}

	return false, strings.Join(failing, ", ")
}
