package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Mutating admission may change more of an object in the same write. The admission policy about the rebalancer then
// refuses a patch, because it cannot tell who changed what. In server-side apply, the managed fields show what was
// sent, so the policy allows it. Patches come first: they cost the API server less, and also remove labels of other
// field managers.

// policy is the name of that policy.
const policy = "rebalancer.sharding.timebertt.dev"

// managerPrefix begins the names by which that policy recognizes the rebalancer in managed fields.
const managerPrefix = "rebalancer-"

// MentionsPolicy reports whether the text of an error says that the policy about the rebalancer has refused a write.
func MentionsPolicy(text string) bool { return strings.Contains(text, "'"+policy+"'") }

// manager returns the name by which the API server records what the ring applies. What a manager does not apply again
// is removed, so each ring has one.
func manager(ring contract.LabelKeys) string {
	if name := managerPrefix + ring.Shard; len(name) <= validation.FieldManagerMaxLength {
		return name
	}

	return fmt.Sprintf("%s%x", managerPrefix, sha256.Sum256([]byte(ring.Shard)))
}

// Labels are the ring's labels of an object, and its handover annotation, as they are after a write.
type Labels struct {
	// Shard is the value of the shard label, and Drain that of the drain label: contract.DrainValue, or the name of the
	// next shard. Empty removes the label.
	Shard, Drain string
	// Handover is the value of the handover annotation. Empty removes the annotation; nil does not change it.
	Handover *string
	// Kind is the kind of the object in the version of its resource. If it is empty, and mutating admission changes
	// more in the same write, the write may be refused.
	Kind string
}

// Label gives an object these labels in one write, and returns the object afterwards, including what admission has
// added. The write succeeds only if the object has not changed since it was read. The error is Conflict if it has
// changed, and NotFound if it is gone. If the policy about the rebalancer refuses the write because admission changes
// more in it, the labels are applied instead; a label is then removed in two writes.
func (c *Client) Label(ctx context.Context, o Object, to Labels) (Object, error) {
	// A resource version belongs to only one object, even among successive objects with the same name.
	w := write{
		version:     o.ResourceVersion,
		labels:      map[string]*string{c.shardLabel: orNull(to.Shard), c.drainLabel: orNull(to.Drain)},
		annotations: map[string]*string{},
	}
	if to.Handover != nil {
		w.annotations[c.handover] = orNull(*to.Handover)
	}

	now, err := c.send(ctx, o.ID, w)
	if apierrors.IsForbidden(err) && MentionsPolicy(err.Error()) && to.Kind != "" {
		w.kind = to.Kind
		now, err = c.apply(ctx, o.ID, w)
	}

	if err != nil {
		return Object{}, fmt.Errorf("label %s: %w", o.ID, err)
	}

	return c.Object(o.GVR, now), nil
}

// write is one write of labels and annotations; nil removes one. It succeeds only for this version of the object.
// Without a kind, it is a JSON merge patch, otherwise an apply.
type write struct {
	kind, version       string
	labels, annotations map[string]*string
}

func orNull(value string) *string {
	if value == "" {
		return nil
	}

	return &value
}

// apply writes with server-side apply. Labels are removed that the same manager has applied before and does not apply
// again, unless they have other managers. So, to remove labels, it first changes only their values, which makes it
// their only manager.
func (c *Client) apply(ctx context.Context, id ID, w write) (*metav1.PartialObjectMetadata, error) {
	now, err := c.server.Get(ctx, id)
	if err != nil {
		return nil, err
	}

	mine, removes := write{kind: w.kind, version: w.version, labels: map[string]*string{}}, false

	for key, value := range w.labels {
		was, present := now.Labels[key]
		if present && value == nil {
			was, removes = "", true
		}

		if present {
			mine.labels[key] = &was
		}
	}

	if removes {
		if now, err = c.applyOnce(ctx, id, mine, now.Annotations[c.handover]); err != nil {
			return nil, err
		}

		w.version = now.ResourceVersion
	}

	maps.DeleteFunc(w.labels, func(_ string, value *string) bool { return value == nil })

	return c.applyOnce(ctx, id, w, now.Annotations[c.handover])
}

// applyOnce writes with one apply, which changes the handover annotation from what it was: the policy recognizes an
// apply by that. If the value is to stay the same, only the text of its JSON changes.
func (c *Client) applyOnce(ctx context.Context, id ID, w write, was string) (*metav1.PartialObjectMetadata, error) {
	value, changes := w.annotations[c.handover]
	if !changes {
		value = &was
	}

	handover := strings.TrimSpace(cmp.Or(ptr.Deref(value, ""), "{}")) // nothing follows the object
	if handover == was {
		handover += " "
	}

	w.annotations = map[string]*string{c.handover: &handover}

	return c.send(ctx, id, w)
}

func (c *Client) send(ctx context.Context, id ID, w write) (*metav1.PartialObjectMetadata, error) {
	metadata := map[string]any{"resourceVersion": w.version, "labels": w.labels, "annotations": w.annotations}
	sent, manager := map[string]any{"metadata": metadata}, ""

	if w.kind != "" {
		sent["apiVersion"], sent["kind"], manager = id.GVR.GroupVersion().String(), w.kind, c.manager
		metadata["name"], metadata["namespace"] = id.Name, id.Namespace
	}

	body, err := json.Marshal(sent)
	if err != nil {
		return nil, fmt.Errorf("encode the labels of %s: %w", id, err)
	}

	return c.server.Patch(ctx, id, body, manager)
}
