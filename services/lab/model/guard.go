package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/takeover"
)

// guard is what the rebalancer's guard knows about one shard's Lease.
type guard uint8

const (
	// neverSeen is a Lease that this guard has not seen; the guard started less than D, D to 2D, or 2D ago.
	neverSeen guard = iota
	neverSeenFor1
	neverSeenFor2
	// sawHeld and sawFree are Leases that exist.
	sawHeld
	sawFree
	// vanished is a Lease that was held when last seen and has been absent for less than D, D to 2D, or 2D.
	vanished
	vanishedFor1
	vanishedFor2
	// vanishedFree is a Lease that was not held when last seen and is absent now.
	vanishedFree

	guards = iota
)

// see returns the guard after it saw the Lease in the given state, cached or live.
func (g guard) see(l lease) guard {
	switch {
	case l == held:
		return sawHeld
	case l.free():
		return sawFree
	case g == sawHeld:
		return vanished
	case g == sawFree:
		return vanishedFree
	}

	return g
}

// grow returns the guard after D has passed.
func (g guard) grow() guard {
	switch g {
	case neverSeen, neverSeenFor1, vanished, vanishedFor1:
		return g + 1
	default:
		return g
	}
}

// duration is D, the duration of every Lease of the model.
const duration = 15 * time.Second

// epoch is when the guard starts.
var epoch = time.Unix(1e9, 0)

// verdict asks the real guard, in the given state, whether objects may be taken from shard a, whose Lease is given.
func verdict(g guard, l lease) (bool, error) {
	now := moment(epoch)
	api := server{}
	guarded := takeover.New(ringName, &api, &now)
	see := func(l lease) { guarded.Observe(membership.NewView(ringName, leasesOf([]lease{l}), nil)) }
	pass := func(n guard) { now = moment(time.Time(now).Add(time.Duration(n) * duration)) }

	switch g {
	case neverSeen, neverSeenFor1, neverSeenFor2:
		see(absent)
		pass(g - neverSeen)
	case sawHeld:
		see(held)
	case sawFree:
		see(released)
	case vanished, vanishedFor1, vanishedFor2:
		see(held)
		see(absent)
		pass(g - vanished)
	case vanishedFree:
		see(taken)
		see(absent)
	}

	api.leases = leasesOf([]lease{l})

	v, err := guarded.MayTake(context.Background(), shardName(1))
	if err != nil {
		return false, fmt.Errorf("ask the guard in state %d about a Lease in state %d: %w", g, l, err)
	}

	return v.Allowed, nil
}

// server is an API server that contains these Leases.
type server struct{ leases []*coordinationv1.Lease }

func (r *server) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("the model serves lists of Leases alone")
}

func (r *server) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	leases, ok := list.(*coordinationv1.LeaseList)
	if !ok {
		return fmt.Errorf("the model serves lists of Leases, not %T", list)
	}

	for _, l := range r.leases {
		leases.Items = append(leases.Items, *l)
	}

	return nil
}

// moment is a clock that stands still.
type moment time.Time

func (m *moment) Now() time.Time { return time.Time(*m) }

func (m *moment) Since(t time.Time) time.Duration { return m.Now().Sub(t) }
