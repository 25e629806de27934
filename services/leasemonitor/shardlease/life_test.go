package shardlease_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// TestLifeOfAShard tells what becomes of a shard's Lease, moment by moment. The transcript is the specification.
func TestLifeOfAShard(t *testing.T) {
	m := newMonitor(t)

	var transcript strings.Builder
	fmt.Fprintf(&transcript, "%-14s %-18s %-10s %-24s %-4s %-5s %s\n", "time", "event", "state", "holder", "D", "moves", "look again after")

	at := func(since time.Duration, event string, act func() error) {
		t.Helper()
		m.pass(since)

		if act != nil {
			require.NoError(t, act())
		}

		result := m.look()

		line := fmt.Sprintf("%-14s %-18s ", since, event)
		if l := m.lease(); l == nil {
			line += "deleted"
		} else {
			line += fmt.Sprintf("%-10s %-24q %-4s %-5d %s", l.Labels[contract.LabelState], ptr.Deref(l.Spec.HolderIdentity, ""),
				fmt.Sprintf("%ds", *l.Spec.LeaseDurationSeconds), *l.Spec.LeaseTransitions, result.RequeueAfter)
		}
		fmt.Fprintln(&transcript, strings.TrimRight(line, " "))
	}

	acquire := func() error { return m.shard.Acquire(t.Context()) }
	renew := func() error {
		m.shard.Clock = testclock.NewFakeClock(m.clock.Now())
		return m.shard.Renew(t.Context())
	}
	release := func() error { return m.shard.Release(t.Context()) }

	at(0, "joins", acquire)
	at(5*time.Second, "renews", renew)
	at(15*time.Second-1, "is silent", nil)
	at(15*time.Second, "is silent", nil)
	at(20*time.Second, "renews late", renew)
	at(40*time.Second, "is silent", nil)
	at(40*time.Second+1, "is silent", nil)
	at(41*time.Second, "", nil)
	at(45*time.Second, "comes back", acquire)
	at(50*time.Second, "stops gracefully", release)
	at(50*time.Second+time.Minute, "is gone", nil)
	at(50*time.Second+time.Minute+time.Second, "is gone for long", nil)
	at(2*time.Minute, "joins again", acquire)

	golden.Assert(t, transcript.String(), "life.txt")
}
