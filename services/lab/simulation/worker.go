package simulation

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
)

// follow maintains the cache of one resource.
func (p *process) follow(ctx context.Context, gr schema.GroupResource) {
	for ctx.Err() == nil {
		if how, ok := p.w.server.Resources()[gr]; ok {
			p.listAndWatch(ctx, gr.WithVersion(how.Version))
		}

		pause(ctx, p.w.clock, time.Second+time.Duration(chance(p.w.h.Seed, p.id.String()+gr.String(), 0)%1e9), nil)
	}
}

func (p *process) listAndWatch(ctx context.Context, gvr schema.GroupVersionResource) {
	opts := metav1.ListOptions{LabelSelector: shardLabel + "=" + p.id.Name, AllowWatchBookmarks: true}
	seen := map[apiserver.ID]*metav1.PartialObjectMetadata{}

	list, err := p.client.List(ctx, gvr, "", opts)
	if err != nil || !p.thaw(ctx) {
		return
	}

	for i := range list.Items {
		seen[idIn(gvr, &list.Items[i])] = &list.Items[i]
	}

	p.see(func() {
		for id := range p.cache {
			if id.GroupResource == gvr.GroupResource() {
				delete(p.cache, id)
			}
		}

		maps.Copy(p.cache, seen)
	})

	opts.ResourceVersion = list.ResourceVersion

	for p.watch(ctx, gvr, &opts) {
	}
}

func idIn(gvr schema.GroupVersionResource, o *metav1.PartialObjectMetadata) apiserver.ID {
	return apiserver.ID{GroupResource: gvr.GroupResource(), Namespace: o.Namespace, Name: o.Name}
}

// watch follows one watch to its end, and reports whether another watch can continue from there.
func (p *process) watch(ctx context.Context, gvr schema.GroupVersionResource, opts *metav1.ListOptions) bool {
	w, err := p.client.Watch(ctx, gvr, "", *opts)
	if err != nil {
		return false
	}

	defer w.Stop()

	for event := range w.ResultChan() {
		if !p.thaw(ctx) {
			return false
		}

		o, ok := event.Object.(*metav1.PartialObjectMetadata)
		if !ok {
			return false
		}

		opts.ResourceVersion = o.ResourceVersion
		id := idIn(gvr, o)

		switch event.Type {
		case watch.Added, watch.Modified:
			p.see(func() { p.cache[id] = o })
		case watch.Deleted:
			p.see(func() { delete(p.cache, id) })
		case watch.Bookmark, watch.Error:
		}
	}

	return ctx.Err() == nil
}

// see changes the cache and triggers what follows from the change.
func (p *process) see(change func()) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()

	if !p.term || !p.w.clock.Now().Before(p.until) {
		return
	}

	change()
	p.settle()
}

// settle starts work on the objects of the shard, stops work on other objects, and processes drains. The lock of the
// cluster is held.
func (p *process) settle() {
	now := map[types.UID]apiserver.ID{}

	for id, o := range p.cache {
		if p.may(id, o) {
			now[o.UID] = id
		}

		if _, drain := o.Labels[drainLabel]; drain && !p.acknowledging[id] && p.w.isMain(id, o) && version(o) > p.given[id] {
			p.acknowledging[id] = true
			drained := version(o)
			p.w.group.Go(func() { p.acknowledge(id, drained) })
		}
	}

	for uid := range p.works {
		if _, still := now[uid]; !still {
			p.w.stopsWork(p, uid)
		}
	}

	for uid, id := range now {
		if _, already := p.works[uid]; !already {
			p.w.beginsWork(p, uid, id)
		}
	}

	p.works = now
}

// may reports whether the process may work on an object of its cache. The lock of the cluster is held.
func (p *process) may(id apiserver.ID, o *metav1.PartialObjectMetadata) bool {
	_, drain := o.Labels[drainLabel]

	if version(o) <= p.given[id] {
		return false
	}

	if p.w.isMain(id, o) {
		// A worker that is busy when the drain arrives stops before the acknowledgement.
		_, inside := p.works[o.UID]

		return !drain || inside
	}

	// The objects that it follows must also be on this shard, up to the main object.
	for range contract.MaxDepth - 1 {
		owner := ownerID(id, o)

		at, ok := p.cache[owner]
		if !ok {
			return false
		}

		if _, moving := at.Labels[drainLabel]; moving || version(at) <= p.given[owner] {
			return false
		}

		if id, o = owner, at; p.w.isMain(id, o) {
			return true
		}
	}

	return false
}

// isMain reports whether shards consider the object a main object. The lock of the cluster is held.
func (w *Cluster) isMain(id apiserver.ID, o *metav1.PartialObjectMetadata) bool {
	role, ok := roleIn(w.labelled, id.GroupResource)
	if !ok {
		return metav1.GetControllerOfNoCopy(o) == nil
	}

	return role == resources.Main
}

// ownerID returns the ID of the controller of an object.
func ownerID(id apiserver.ID, o *metav1.PartialObjectMetadata) apiserver.ID {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return apiserver.ID{}
	}

	return object(resourceOf(ref.Kind), id.Namespace, ref.Name)
}

// resourceOf returns the resource of a kind.
func resourceOf(kind string) schema.GroupResource {
	for gr, how := range served {
		if how.Kind == kind {
			return gr
		}
	}

	return schema.GroupResource{}
}

// acknowledge releases an object that the shard was asked for.
func (p *process) acknowledge(id apiserver.ID, drained int64) {
	ctx, c := p.ctx, p.w.clock
	job := time.Duration(chance(p.w.h.Seed, p.id.String()+" leaves "+id.String(),
		int(drained))%uint64(100*time.Millisecond+p.slow)) + 1

	for {
		pause(ctx, c, job, nil)

		p.w.mu.Lock()
		o, wait := p.toGive(id)
		p.w.mu.Unlock()

		if o == nil && wait == 0 {
			return
		}

		if o == nil {
			job = wait
			continue
		}

		how, ok := p.w.server.Resources()[id.GroupResource]
		if !ok {
			job = time.Second
			continue
		}

		limited, cancel := context.WithTimeout(ctx, 30*time.Second)
		after, err := p.client.Patch(limited, feed.ID{
			GVR: id.WithVersion(how.Version), Namespace: id.Namespace, Name: id.Name,
		}, acknowledgement(o), "")

		cancel()
		p.see(func() {
			if err == nil {
				p.given[id] = max(p.given[id], version(after))
			}
		})

		job = time.Second
		if err == nil || apierrors.IsConflict(err) {
			job = 100 * time.Millisecond
		}
	}
}

// toGive returns the object to acknowledge, on which the process no longer works; or when to look again; or neither, if
// there is nothing left to acknowledge. The lock of the cluster is held.
func (p *process) toGive(id apiserver.ID) (o *metav1.PartialObjectMetadata, wait time.Duration) {
	now := p.w.clock.Now()

	if !p.term || !now.Before(p.until) || p.ctx.Err() != nil {
		delete(p.acknowledging, id)
		return nil, 0
	}

	if wait := max(p.frozen.Sub(now), p.hung.Sub(now)); wait > 0 {
		return nil, wait
	}

	if p.w.h.Lasting == Stuck && p.w.h.Whom == p.id.Name {
		if p.w.stuck.Name == "" {
			p.w.stuck = id
		}

		if p.w.stuck == id {
			return nil, time.Minute
		}
	}

	if p.guards() && p.makes[id] > 0 {
		return nil, time.Millisecond
	}

	o, ok := p.cache[id]
	if !ok {
		delete(p.acknowledging, id)
		return nil, 0
	}

	if _, drain := o.Labels[drainLabel]; !drain || version(o) <= p.given[id] && p.confirmed(id, o) {
		delete(p.acknowledging, id)
		p.settle()

		return nil, 0
	}

	p.given[id] = max(p.given[id], version(o))
	p.settle()
	p.w.givenUpFor(p, o.UID)

	return o, 0
}

// confirmed reports whether the API server has confirmed the release of the object in a later version than this.
func (p *process) confirmed(id apiserver.ID, o *metav1.PartialObjectMetadata) bool {
	return p.given[id] > version(o)
}

// acknowledgement is the patch that releases an object.
func acknowledgement(o *metav1.PartialObjectMetadata) []byte {
	becomes := map[string]any{shardLabel: nil, drainLabel: nil}
	if next := o.Labels[drainLabel]; next != contract.DrainValue && next != "" {
		becomes[shardLabel] = next
	}

	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.ResourceVersion,
		"labels": becomes}})
	if err != nil {
		panic("encode an acknowledgement: " + err.Error())
	}

	return body
}
