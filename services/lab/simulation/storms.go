package simulation

import (
	"fmt"
	"net/http"
	"time"

	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// storm draws several disturbances that are harmful only in combination.
func (d *drawing) storm() {
	at := 20*time.Second + time.Duration(d.Int64N(int64(d.length)))

	pick(d, []func(time.Duration){ // some occur more often than others
		d.stormOfLeases, d.stormOfLeases, d.outage, d.outage, d.unknownVersion, d.slowLists, d.slowReads,
		d.allGone, d.allGone,
		d.stormOfLeases, d.namespacesChange, d.typo, d.slowLists, d.refusedPasses, d.deniedWrites, d.longRefusal,
	}...)(at)
}

// fault draws a fault that hits the rebalancer.
func (d *drawing) fault(at, lasts time.Duration, f apiserver.Fault) {
	f.Client = or(f.Client, "rebalancer")
	d.step(Step{At: at, For: lasts, Act: Disturb, Fault: f})
}

// past draws objects that bypass admission, so that they have no shard.
func (d *drawing) past(at, within time.Duration, n int) {
	for i := range n {
		gr := pick(d, websites, websites, databases)
		d.step(Step{
			At: at + time.Duration(d.Int64N(int64(within))), Act: Create, Around: true,
			Object: object(gr, pick(d, "n1", "n2", "n3"), fmt.Sprintf("%s-past-%d", gr.Resource[:1], i)),
		})
	}
}

// stormOfLeases makes users tamper with the Leases of live shards, some of which end then.
func (d *drawing) stormOfLeases(at time.Duration) {
	for range 1 + d.IntN(4) {
		who := d.shards[d.IntN(len(d.shards))]
		act := pick(d, DeleteLease, DeleteLease, PinLease, PinLease, LongLease, FullLease)
		d.step(Step{At: at, Act: act, Who: who})

		switch {
		case act == LongLease: // the next leader knows about that Lease, and nothing about another shard that objects name
			at += d.span()
			d.step(Step{At: at, Act: RestartRebalancer, For: time.Second})

			for range 3 {
				d.step(Step{At: at + d.span(), Act: Relabel, Object: d.mains[d.IntN(len(d.mains))], Value: "shard-unknown"})
			}
		case d.IntN(3) > 0:
			d.step(Step{At: at + d.span(), Act: pick(d, Crash, Crash, Leave), Who: who})
		}

		at += d.span()
	}
}

// outage makes the API server answer nobody for a while, in which no shard can renew its Lease.
func (d *drawing) outage(at time.Duration) {
	d.step(Step{At: at, Act: Disturb, For: 35*time.Second + time.Duration(d.Int64N(int64(90*time.Second))),
		Fault: apiserver.Fault{
			Effect: pick(d, apiserver.Refuse, apiserver.Refuse, apiserver.Hang), Code: http.StatusServiceUnavailable,
			Resource: pick(d, "", leases.String()),
		}})
}

// unknownVersion makes one of several API servers not know a version yet, while objects have to move.
func (d *drawing) unknownVersion(at time.Duration) {
	f := apiserver.Fault{Effect: apiserver.Refuse, Code: http.StatusNotFound, Verb: "write", Percent: pick(d, 0, 50)}
	d.fault(at, 3*time.Second, f)
	d.past(at, 3*time.Second, 4)
}

// slowLists makes pages so slow that they are long out of date, while nothing can be written.
func (d *drawing) slowLists(at time.Duration) {
	d.h.Streaming, d.h.Page = false, 3

	d.fault(at, 40*time.Second, apiserver.Fault{
		Effect: apiserver.Slow, Verb: "list", Resource: websites.String(), Delay: pick(d, 2*time.Second, 4*time.Second),
	})
	d.fault(at+time.Second, 25*time.Second, apiserver.Fault{
		Effect: apiserver.Refuse, Verb: "write", Resource: websites.String(), Code: http.StatusInternalServerError,
	})
	d.step(Step{At: at + 500*time.Millisecond, Act: Join, Who: "shard-x"}) // otherwise there would be no list

	for i := range 9 {
		id := object(websites, pick(d, "n1", "n2"), fmt.Sprintf("w-slow-%d", i))
		d.step(Step{At: at - 10*time.Second, Act: Create, Object: id})
		d.step(Step{At: at + time.Second + time.Duration(d.Int64N(int64(20*time.Second))), Act: Relabel,
			Object: id, Around: true})
	}
}

// deniedWrites refuses writes of objects for longer than the longest pause between attempts.
func (d *drawing) deniedWrites(at time.Duration) {
	lasts := time.Minute + time.Duration(d.Int64N(int64(time.Minute)))
	gr := pick(d, websites, databases).String()

	d.fault(at, lasts, apiserver.Fault{Effect: apiserver.Refuse, Verb: "write", Resource: gr, Code: pick(d, 403, 500)})
	d.past(at, 10*time.Second, 4)
}

// slowReads makes a read of the rebalancer so slow that the target changes before the answer.
func (d *drawing) slowReads(at time.Duration) {
	d.fault(at, 25*time.Second, apiserver.Fault{Effect: apiserver.Slow, Verb: "get", Delay: 20 * time.Second})
	d.fault(at, time.Second, apiserver.Fault{Effect: apiserver.Lose, Verb: "write"})
	d.past(at, time.Second, 4)
	d.step(Step{At: at + time.Second + time.Duration(d.Int64N(int64(8*time.Second))), Act: Join, Who: "shard-x"})
}

// allGone removes all shards for a while, so that many objects wait for the first one that joins.
func (d *drawing) allGone(at time.Duration) {
	d.h.Page = 3

	for _, who := range d.shards {
		d.step(Step{At: at, Act: pick(d, Leave, Crash), Who: who})
	}

	d.past(at+time.Second, 40*time.Second, 8)

	if d.IntN(2) == 0 {
		d.step(Step{At: at + 10*time.Second, Act: RestartRebalancer, For: d.span()})
	}

	for _, who := range d.shards {
		d.step(Step{At: at + 50*time.Second + d.span(), Act: Join, Who: who})
	}
}

// namespacesChange makes namespaces join and leave the ring.
func (d *drawing) namespacesChange(at time.Duration) {
	d.step(Step{At: at, Act: EditRing, N: pick(d, 8, 9)})

	for range 3 + d.IntN(3) {
		at += d.span()
		d.step(Step{At: at, Act: Team, Who: pick(d, "n1", "n2", "n3"), Value: pick(d, "a", "b")})
	}
}

// typo makes the ring name a resource that does not exist, until somebody notices it or deletes the ring.
func (d *drawing) typo(at time.Duration) {
	d.step(Step{At: at, Act: EditRing, N: pick(d, misspelt...)})

	if at += d.span(); d.IntN(4) > 0 {
		d.step(Step{At: at, Act: EditRing, N: d.IntN(misspelt[0])})
	}

	if at += d.span(); d.IntN(2) == 0 {
		d.step(Step{At: at, Act: DeleteRing})
	}
}

// refusedPasses refuses lists while a shard joins or leaves.
func (d *drawing) refusedPasses(at time.Duration) {
	d.fault(at, 8*time.Second+d.span(), apiserver.Fault{
		Effect: apiserver.Refuse, Verb: "list", Code: http.StatusInternalServerError, Resource: pick(d, "", websites.String(),
			databases.String()),
	})
	d.step(Step{At: at + time.Duration(d.Int64N(int64(3*time.Second))), Act: pick(d, Join, Leave, Crash),
		Who: pick(d, "shard-x", d.shards[0])})
}

// longRefusal refuses the rebalancer's requests for a resource for so long that pauses between attempts reach their
// maximum.
func (d *drawing) longRefusal(at time.Duration) {
	gr := pick(d, websites, databases).String()
	lasts := 18*time.Minute + time.Duration(d.Int64N(int64(6*time.Minute)))
	code := pick(d, http.StatusInternalServerError, http.StatusServiceUnavailable)

	for _, verb := range []string{"list", "watch"} {
		d.fault(at, lasts, apiserver.Fault{Effect: apiserver.Refuse, Verb: verb, Resource: gr, Code: code})
	}

	d.step(Step{At: at, Act: Cut, Who: "rebalancer", Value: "closed"})
	d.past(at+lasts/2, lasts/2, 4)
}
