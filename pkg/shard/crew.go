package shard

import "sync"

// crew counts what works. After it was dismissed, nothing more begins. The zero value is ready to use.
type crew struct {
	mu        sync.Mutex
	dismissed bool
	working   int
	idle      chan struct{} // closed when nothing works any more; nil before the crew is dismissed
}

// enter reports whether work may begin; if so, end it by leave.
func (c *crew) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.dismissed {
		c.working++
	}

	return !c.dismissed
}

// leave ends what enter has begun.
func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.working--; c.dismissed && c.working == 0 {
		close(c.idle)
	}
}

// dismiss lets nothing more begin. It returns a channel that is closed when nothing works.
func (c *crew) dismiss() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.dismissed {
		c.dismissed, c.idle = true, make(chan struct{})
		if c.working == 0 {
			close(c.idle)
		}
	}

	return c.idle
}

// isIdle reports whether the crew was dismissed and nothing works.
func (c *crew) isIdle() bool { return closed(c.dismiss()) }

// closed reports whether the channel is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
