package rings

import "time"

// longestPace limits the wait for the next target.
const longestPace = time.Second

// pace limits how often the engine of a ring gets another target. The first change of the shards counts at once. The next one waits for twice the
// time that the last target took, so that targets take at most a third of the time as long as one takes half a second or less: when hundreds of a
// thousand shards join or die, their Leases change for a second, and each target takes a tenth of a second for a table, a list, a watch, and writes
// of a large status. The zero value does not wait.
type pace struct{ next time.Time }

// record records that the engine got a target, and when the work for it began and ended.
func (p *pace) record(began, ended time.Time) {
	p.next = ended.Add(min(2*ended.Sub(began), longestPace)) //nolint:mnd // twice
}

// wait returns how long the next target has to wait; zero or less if it does not.
func (p *pace) wait(now time.Time) time.Duration { return p.next.Sub(now) }
