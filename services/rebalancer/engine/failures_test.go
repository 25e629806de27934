package engine

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/rebalancer/move"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// However often the write of a drain fails, the object is drained in the end. Until then, the ring is not reported as
// converged.
func TestFailedDrainIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	all := w.owners("misplaced", "a", 20)

	w.meddle(func(r asked) (*http.Response, error) {
		if r.of(http.MethodPatch, "configmaps") {
			return refusedAsInternal()
		}

		return nil, nil
	})
	w.e.SetTarget(w.target)
	w.run()

	w.await(func() bool {
		require.False(t, w.e.Report().Converged)

		return !slices.ContainsFunc(all, func(cm *corev1.ConfigMap) bool { return w.times("PATCH configmaps/"+cm.Name) < 4 })
	}, "every object should be retried repeatedly")
	w.await(func() bool { return strings.Contains(w.e.Report().BlockedExample, "refused by the test") },
		"the cause should be reported")
	require.Equal(t, 20, w.e.Report().Misplaced)

	w.meddle(nil)

	for _, cm := range all {
		w.comes(cm, "a", true)
	}
}

// An object that another client changes whenever the engine writes it is drained anyway.
func TestObjectThatChangesAllTheTimeIsDrained(t *testing.T) {
	w := newWorld(t)
	cm := w.owners("busy", "a", 1)[0]
	same := cm.DeepCopy()

	w.meddle(func(r asked) (*http.Response, error) {
		if r.of(http.MethodPatch, "configmaps") {
			if n := w.times("PATCH configmaps"); n <= 12 {
				w.relabel(same, map[string]any{"round": strings.Repeat("x", n)})
			}
		}

		return nil, nil
	})
	w.e.SetTarget(w.target)
	w.run()
	w.await(func() bool {
		require.False(t, w.e.Report().Converged)
		return w.placed(cm, "a", true)
	}, "it should be drained")
	require.Equal(t, 13, w.times("PATCH configmaps"))
}

// A ring that is being deleted does not end before the last label is removed.
func TestLabelsThatCannotBeRemovedAreNotForgotten(t *testing.T) {
	w := newWorld(t)
	cm := w.owner("released", "a")

	leaving := *w.target
	leaving.Leaving = map[schema.GroupResource]bool{{Resource: "configmaps"}: true, {Resource: "secrets"}: true}

	w.meddle(func(r asked) (*http.Response, error) {
		if r.of(http.MethodPatch, "configmaps") && w.times("PATCH configmaps")%4 != 0 { // the drain, then the last label
			return refusedAsInternal()
		}

		return nil, nil
	})
	w.e.SetTarget(&leaving)
	w.run()

	becomes := func(shard string, drain bool) func() bool {
		return func() bool {
			converged := w.e.Report().Converged // read first: a deleted object does not come back
			there := w.placed(cm, shard, drain)
			require.True(t, !converged || w.placed(cm, "", false))

			return there
		}
	}

	w.await(becomes("a", true), "it should be drained")
	w.relabel(cm, map[string]any{contract.ShardLabel(w.ring): nil}) // the drain label stays
	w.await(becomes("", false), "the last label should be removed")
	w.converges()
}

// A refused watch or list is reported. Meanwhile, the ring is not converged, and the API server gets few requests.
func TestSourceThatIsRefusedIsReported(t *testing.T) {
	for _, verb := range []string{"WATCH", "LIST"} {
		for code, reason := range map[int]metav1.StatusReason{
			http.StatusForbidden:           metav1.StatusReasonForbidden,
			http.StatusNotFound:            metav1.StatusReasonNotFound,
			http.StatusMethodNotAllowed:    metav1.StatusReasonMethodNotAllowed,
			http.StatusInternalServerError: metav1.StatusReasonInternalError,
			http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
		} {
			if verb == "LIST" && code > http.StatusMethodNotAllowed {
				continue // the same as for other reasons
			}

			t.Run(verb+" "+string(reason), func(t *testing.T) {
				w := newWorld(t, byHand)
				w.e.SetTarget(w.target)

				var troubles atomic.Int32

				w.e.Trouble = func() { troubles.Add(1) }

				if verb == "WATCH" {
					w.run()
					w.converges()
				}

				w.meddle(func(r asked) (*http.Response, error) {
					if r.of(verb, "configmaps") {
						return refused(code, reason)
					}

					return nil, nil
				})

				if verb == "LIST" {
					w.run()
				}

				w.cut()
				w.eventually(func() bool { return w.failure("refused by the test") && !w.e.Report().Converged },
					"the failure should be reported")
				require.Positive(t, troubles.Load(), "the resource may be served in another way")

				unseen := w.owner("unseen", "")
				before := w.times("LIST configmaps", "WATCH configmaps")

				for range 30 {
					w.goesBy(1)
					require.False(t, w.e.Report().Converged)
				}

				require.LessOrEqual(t, w.times("LIST configmaps", "WATCH configmaps")-before, 60,
					"three sources in half a minute should send few requests")

				w.meddle(nil)
				w.eventually(func() bool { return !w.placed(unseen, "", false) }, "objects of the meantime should be found")
				w.converges()
				require.Empty(t, w.e.Report().Failures)
			})
		}
	}
}

// Children of an owner that has moved follow it, even if drains of other objects hang, and even if the list of children
// fails.
func TestHangingDrainDoesNotStopTheChildrenOfOthers(t *testing.T) {
	w := newWorld(t)
	hanging := w.owners("hanging", "a", 1)[0]
	owner := w.owners("owner", "a", 1)[0]
	child := w.child(owner, "child", "a")
	settled := w.owners("settled", "b", 1)[0]
	misplaced := w.child(settled, "misplaced", "a")

	w.e.SetTarget(w.target)
	w.run()
	w.comes(hanging, "a", true)
	w.comes(owner, "a", true)
	w.comes(misplaced, "b", false)

	before := w.times("LIST secrets")

	w.meddle(func(r asked) (*http.Response, error) {
		if r.of("LIST", "secrets") && w.times("LIST secrets") <= before+3 {
			return refusedAsInternal()
		}

		return nil, nil
	})
	w.acknowledge(owner)
	w.comes(owner, "b", false)
	w.comes(child, "b", false)
	require.True(t, w.placed(hanging, "a", true))
	require.False(t, w.e.Report().Converged)
}

// While followers cannot be listed, their objects wait, and the ring says so. Afterwards, nothing is left of the
// failure.
func TestFailureOfASearchIsForgotten(t *testing.T) {
	w := newWorld(t)
	owner := w.owners("owner", "a", 1)[0]
	child := w.child(owner, "child", "a")

	w.e.SetTarget(w.targetOf("a"))
	w.run()
	w.converges()
	w.meddle(func(r asked) (*http.Response, error) {
		if r.of("LIST", "secrets") && r.selector == w.e.Objects.ShardLabel() {
			return refusedAsInternal()
		}

		return nil, nil
	})
	w.e.SetTarget(w.target)
	w.comes(owner, "a", true)
	w.acknowledge(owner)
	w.await(func() bool {
		w.e.mu.Lock()
		defer w.e.mu.Unlock()

		return w.e.failures[idOf(forFollowers, w.target.Set.Controlled()[0])] != ""
	}, "the failure should be reported")
	require.True(t, w.placed(owner, "", false), "the owner should wait")

	w.meddle(nil)
	w.comes(child, "b", false)
	w.comes(owner, "b", false)
	w.converges()
	require.Empty(t, w.e.Report().Failures)
}

// The shards change more often than a list takes. The objects of a dead shard are found anyway.
func TestListsAreNotCutOffByTheNextChange(t *testing.T) {
	w := newWorld(t)
	w.lease("c", false)

	three := w.targetOf("a", "b", "c")
	cm := w.owner(w.namesAt(three, "c", "at-c", 1)[0], "c")
	w.e.SetTarget(three)
	w.run()
	w.converges()

	held := make(chan chan struct{}, 1000) // each list waits until its channel is closed, or the engine cancels it

	w.meddle(func(r asked) (*http.Response, error) {
		if !r.of("LIST", "configmaps") || !strings.Contains(r.selector, " notin (") {
			return nil, nil
		}

		free := make(chan struct{})
		held <- free

		select {
		case <-free:
			return nil, nil
		case <-r.ctx.Done():
			return nil, r.ctx.Err()
		}
	})
	w.e.SetTarget(w.targetOf("a", "b")) // c is dead

	for i := range 6 {
		w.await(func() bool { return len(held) > 0 || !w.placed(cm, "c", false) }, "the objects of c should be listed")

		begun := len(held)
		w.e.SetTarget(w.targetOf("a", "b", fmt.Sprintf("d%d", i)))

		for range begun {
			close(<-held)
		}
	}

	w.await(func() bool { return !w.placed(cm, "c", false) }, "the object of the dead shard should move")
}

// Objects are found even if they appear while a watch is open and silent: after a restore of its storage, an API server
// reports nothing to a watch from a version that it has not reached.
func TestBlindWatchIsNotBelieved(t *testing.T) {
	w := newWorld(t, byHand)
	w.e.SetTarget(w.target)
	w.run()
	w.converges()

	w.blind(func(r asked) bool { return r.of("WATCH", "configmaps") })

	cm := w.owner("unseen", "")
	w.eventually(func() bool {
		w.goesBy(5)
		return !w.placed(cm, "", false)
	}, "a list should show it")
}

// The same holds for a drain label without a shard label, which no pass sees, when the ring is deleted.
func TestDeletedRingDoesNotBelieveABlindWatch(t *testing.T) {
	w := newWorld(t, byHand)
	w.e.SetTarget(w.target)
	w.run()
	w.converges()

	w.blind(func(r asked) bool { return r.of("WATCH", "secrets") && r.selector == contract.DrainLabel(w.ring) })

	owner := w.owner("owner", "a")
	of := w.child(owner, "unseen", "")
	w.relabel(of, map[string]any{contract.DrainLabel(w.ring): "true"})

	leaving := *w.target
	leaving.Leaving = map[schema.GroupResource]bool{{Resource: "configmaps"}: true, {Resource: "secrets"}: true}
	w.e.SetTarget(&leaving)
	w.becomes(owner, "a", true)
	w.acknowledge(owner)
	w.converges()
	require.True(t, w.placed(of, "", false), "the label is gone before the ring is")
}

// A namespace that the ring does not cover costs nothing: its changes are no events of watches for objects without a
// shard.
func TestNamespacesThatAreLeftOutAreNotWatched(t *testing.T) {
	for name, narrow := range map[string]func(r *world, other string) move.Narrowing{
		"few are left out": func(_ *world, other string) move.Narrowing {
			return move.Narrowing{Except: []string{other}}
		},
		"few are covered": func(r *world, _ string) move.Narrowing {
			return move.Narrowing{Single: true, Only: []string{r.ns}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newWorld(t, atRest)
			other := localplane.Shared(t).Namespace(t)
			all := target(r.ring)
			all.Narrow = narrow(r, other)
			r.e.mover.Lookup.Namespaces = these{r.ns, other}

			r.e.SetTarget(all)
			r.run()
			r.converges()

			watched := slices.DeleteFunc(r.since(0), func(a asked) bool {
				return a.verb != "WATCH" || !strings.Contains(a.selector, "notin")
			})
			require.Len(t, watched, 1)

			if all.Narrow.Single {
				require.Contains(t, watched[0].path, "/namespaces/"+r.ns+"/")
			} else {
				require.Contains(t, watched[0].fields, "metadata.namespace!="+other)
			}

			r.becomes(r.owner("mine", ""), "a", false)

			// From now on, the ring also has to watch the other namespace.
			wider := *all
			if wider.Narrow.Except = nil; wider.Narrow.Single {
				wider.Narrow.Only = []string{other, r.ns}
			}

			before := r.passes(0)
			r.ns = other
			cm := r.owner("others", "")
			r.e.SetTarget(&wider)
			r.becomes(cm, "a", false)
			require.Equal(t, before, r.passes(0), "only the watches have changed")
		})
	}
}
