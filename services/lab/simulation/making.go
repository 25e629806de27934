package simulation

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// making is how long a shard at most works on a main object before it creates what follows the object.
const making = 3 * time.Second

// make lets the shard that works on a main object create an object that follows it. Nothing happens if there is no such
// shard.
func (w *Cluster) make(s Step) {
	owner := w.scoped(s.Owner)

	w.mu.Lock()

	p := w.worker(owner)
	if p != nil {
		p.makes[owner]++
	}
	w.mu.Unlock()

	if p == nil {
		return
	}

	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		p.makes[owner]--
	}()

	references := w.references(s)
	pause(p.ctx, w.clock, time.Duration(chance(w.h.Seed, "makes "+s.Object.String(), int(s.At))%uint64(making)), nil)

	w.mu.Lock()
	until := p.until
	w.mu.Unlock()

	if references == nil || !p.thaw(p.ctx) || !p.inTerm() {
		return
	}

	ctx, cancel := context.WithDeadline(p.ctx, until)
	defer cancel()

	o := &metav1.PartialObjectMetadata{}
	o.OwnerReferences = references
	_ = p.client.Create(ctx, w.scoped(s.Object), o)
}

// worker returns the process that works on a main object; nil if there is none. The lock is held.
func (w *Cluster) worker(on apiserver.ID) *process {
	for _, id := range sortedKeys(w.processes) {
		for _, at := range w.processes[id].works {
			if at == on {
				return w.processes[id]
			}
		}
	}

	return nil
}

func (p *process) inTerm() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	return p.term && p.w.clock.Now().Before(p.until)
}

// guards reports whether the process releases an object only when all its workers have left it. One of another library
// looks only at the worker that sees the drain.
func (p *process) guards() bool { return p.id.Name != plainShard }

// busy reports whether the process creates anything.
func (p *process) busy() bool {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	for _, n := range p.makes {
		if n > 0 {
			return true
		}
	}

	return false
}

// writerOf returns the Pod of a shard that writes; empty for another client.
func writerOf(client string) types.NamespacedName {
	id, _ := strings.CutPrefix(client, "shard/")
	if id == client {
		return types.NamespacedName{}
	}

	namespace, name, _ := strings.Cut(id, "/")

	return types.NamespacedName{Namespace: namespace, Name: name}
}

// made records that a shard has created an object. If the shard worked then, and the object has come to where its owner
// is, the rebalancer must not lose sight of it. Otherwise it is like one that a user has created: without a label, a
// watch finds it, and with a wrong label only an audit may. The lock is held.
func (w *Cluster) made(write apiserver.Write) {
	var at string

	owner := metav1.GetControllerOfNoCopy(write.New).UID

	write.Others(func(_ apiserver.ID, o *metav1.PartialObjectMetadata) {
		if o.UID == owner {
			at = o.Labels[shardLabel]
		}
	})

	p, shard := w.processes[writerOf(write.Client)], write.New.Labels[shardLabel]
	if shard != "" && shard == at && p != nil && p.id.Name == shard && p.term && w.clock.Now().Before(p.until) {
		return
	}

	if w.changed[write.New.UID] = w.clock.Now(); shard != "" {
		w.touch(write.ID)
	}
}

// settling is how long nothing moves that exists at first.
const settling = 12 * time.Second

// makeChildren makes shards create objects that follow main objects, most of them when main objects begin to move.
func (d *drawing) makeChildren() {
	moves := slices.DeleteFunc(slices.Clone(d.h.Steps), func(s Step) bool {
		return s.Act != Join && s.Act != Leave && s.Act != Rekey || s.At < settling
	})

	for i := range 10 + d.IntN(30) {
		owner := d.mains[d.IntN(len(d.mains))]
		child := object(pick(d, configMaps, configMaps, secrets), or(owner.Namespace, pick(d, "n1", "n2")),
			fmt.Sprint("made-", i))

		at := settling + d.at()
		if len(moves) > 0 && d.IntN(4) > 0 {
			at = moves[d.IntN(len(moves))].At + time.Duration(d.Int64N(int64(making))) - making/2
		}

		d.step(Step{At: at, Act: Make, Object: child, Owner: owner})
	}
}
