package toolcache

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress prints the progress of a build: a line at the start of each phase and at each tick. It reports one build at a time, and is safe
// for concurrent use by that build. A nil Progress prints nothing.
type Progress struct {
	// Out receives the lines.
	Out io.Writer
	// Terminal is true if Out is a terminal: each line overwrites the previous one.
	Terminal bool
	// Now reads the clock.
	Now func() time.Time
	// Ticks triggers a line at each tick; nil means only at the start of phases.
	Ticks <-chan time.Time

	mu     sync.Mutex
	title  string
	state  string
	begin  time.Time
	phased time.Time // when the phase began
}

// start sets the title, and prints a line at every tick until finish is called with the outcome.
func (p *Progress) start(title string) (finish func(error)) {
	if p == nil {
		return func(error) {}
	}
	p.mu.Lock()
	p.title, p.begin, p.phased = title, p.Now(), p.Now()
	p.mu.Unlock()

	done := make(chan struct{})

	var loop sync.WaitGroup
	loop.Go(func() {
		for {
			select {
			case <-p.Ticks:
				p.write(false)
			case <-done:
				return
			}
		}
	})

	return func(err error) {
		close(done)
		loop.Wait()

		if err != nil {
			p.set("failed")
		} else {
			p.set("done")
		}
		p.write(true)
	}
}

// phase starts a phase and prints a line immediately.
func (p *Progress) phase(format string, args ...any) {
	p.set(format, args...)

	if p != nil {
		p.mu.Lock()
		p.phased = p.Now()
		p.mu.Unlock()
	}
	p.write(false)
}

// compiled updates the next line: the number of compiled packages, and the estimated time for the others, from the mean of the compiled
// ones.
func (p *Progress) compiled(done, total int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	passed := p.Now().Sub(p.phased)
	p.mu.Unlock()
	p.set("compiling, %d packages so far, at most %d%s", done, total, left(passed, done, total))
}

// left estimates the remaining time; it returns an empty text if too little is done.
func left(passed time.Duration, done, total int) string {
	const enough = 50
	if done < enough || passed < 5*time.Second {
		return ""
	}

	rest := passed * time.Duration(max(total-done, 0)) / time.Duration(done)
	if rest < time.Minute {
		return ", less than a minute left"
	}

	return fmt.Sprintf(", about %d min left", int(rest.Round(time.Minute).Minutes()))
}

// set updates the next line.
func (p *Progress) set(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.state = fmt.Sprintf(format, args...)
}

func (p *Progress) write(last bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	line := fmt.Sprintf("%s: %s (%ds)", p.title, p.state, int(p.Now().Sub(p.begin).Seconds()))
	switch { // errors are ignored: the terminal may be closed
	case !p.Terminal:
		_, _ = fmt.Fprintln(p.Out, line)
	case last:
		_, _ = fmt.Fprintf(p.Out, "\r\x1b[K%s\n", line)
	default:
		_, _ = fmt.Fprintf(p.Out, "\r\x1b[K%s", line)
	}
}
