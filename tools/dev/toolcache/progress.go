package toolcache

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress tells a waiting person what a build is doing: a line at the begin of each phase and at each tick.
// It reports one build at a time, and is safe for concurrent use by that build. A nil Progress tells nothing.
type Progress struct {
	// Out receives the lines.
	Out io.Writer
	// Terminal says that Out is a terminal: each line overwrites the one before.
	Terminal bool
	// Now reads the clock.
	Now func() time.Time
	// Ticks says when to write a line; nil for the begin of phases only.
	Ticks <-chan time.Time

	mu     sync.Mutex
	title  string
	state  string
	begin  time.Time
	phased time.Time // when the phase began
}

// start names what is being built, and reports at every tick until finish is called with the outcome.
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

// phase says at once what happens now.
func (p *Progress) phase(format string, args ...any) {
	p.set(format, args...)
	if p != nil {
		p.mu.Lock()
		p.phased = p.Now()
		p.mu.Unlock()
	}
	p.write(false)
}

// compiled changes what the next line will say: how many packages of a phase are compiled, and how long the others may take. Packages
// differ, but among hundreds of them the mean of those done is a fair guess.
func (p *Progress) compiled(done, total int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	passed := p.Now().Sub(p.phased)
	p.mu.Unlock()
	p.set("compiling, %d packages so far, at most %d%s", done, total, left(passed, done, total))
}

// left says how long it may take until all is done, once enough is done to tell.
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

// set changes what the next line will say.
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
	switch { // errors are ignored: who closed the terminal does not read it
	case !p.Terminal:
		_, _ = fmt.Fprintln(p.Out, line)
	case last:
		_, _ = fmt.Fprintf(p.Out, "\r\x1b[K%s\n", line)
	default:
		_, _ = fmt.Fprintf(p.Out, "\r\x1b[K%s", line)
	}
}
