package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// Mutating admission may change more of an object in the same write. The admission policy about the rebalancer then refuses a patch, because it cannot
// tell who changed what. In server-side apply, the managed fields show what was sent, so the policy allows it. Patches come first: they cost the API
// server less, and remove labels whoever has set them.

// policy is the name of that policy.
const policy = "rebalancer.sharding.timebertt.dev"

// managerPrefix begins the names by which that policy recognizes the rebalancer in managed fields.
const managerPrefix = "rebalancer-"

// errChanged is why an object is not written.
var errChanged = errors.New("the object has changed since it was read")

// MentionsPolicy reports whether the text of an error says that the policy about the rebalancer has refused a write.
func MentionsPolicy(text string) bool { return strings.Contains(text, "'"+policy+"'") }

// manager returns the name by which the API server records what the ring applies. What a manager does not apply again is removed, so each ring has one.
func manager(ring contract.LabelKeys) string {
	if name := managerPrefix + ring.Shard; len(name) <= validation.FieldManagerMaxLength {
		return name
	}

	return fmt.Sprintf("%s%x", managerPrefix, sha256.Sum256([]byte(ring.Shard)))
}

// Change is a change of labels. The zero value changes nothing.
type Change struct {
	// Shard is the new value of the shard label. Empty does not change the label.
	Shard string
	// RemoveShard removes the shard label.
	RemoveShard bool
	// Drain is the value of the drain label to add: contract.DrainValue, or the name of the next shard. Empty does not change
	// the label.
	Drain string
	// RemoveDrain removes the drain label.
	RemoveDrain bool
	// Handover is the value of the handover annotation. Empty removes the annotation; nil does not change it.
	Handover *string
	// Kind is the kind of the object in the version of its resource. If it is empty, and mutating admission changes more in the same write, the change
	// may be refused.
	Kind string
}

// labels returns the labels that a change sets, by key; nil removes a label.
func (c *Client) labels(change Change) map[string]*string {
	all := map[string]*string{}

	for _, l := range []struct {
		key, value string
		remove     bool
	}{{c.shardLabel, change.Shard, change.RemoveShard}, {c.drainLabel, change.Drain, change.RemoveDrain}} {
		switch {
		case l.remove:
			all[l.key] = nil
		case l.value != "":
			all[l.key] = &l.value
		}
	}

	return all
}

// document is what is sent of an object. In a JSON merge patch, null removes a label or an annotation. What is applied also
// has the type and the name of the object.
type document struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metadataSent `json:"metadata"`
}

type metadataSent struct {
	Name            string             `json:"name,omitempty"`
	Namespace       string             `json:"namespace,omitempty"`
	ResourceVersion string             `json:"resourceVersion"`
	Labels          map[string]*string `json:"labels"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}

// Label changes the labels of an object in one write, and returns the object afterwards, including what admission has
// added. The write succeeds only if the object has not changed since it was read. The error is Conflict if it has changed,
// and NotFound if it is gone. If the policy about the rebalancer refuses the write because admission changes more in it,
// the change is applied instead; a label is then removed in two writes.
func (c *Client) Label(ctx context.Context, o Object, change Change) (Object, error) {
	// A resource version belongs to only one object, even among successive objects with the same name.
	sent := metadataSent{ResourceVersion: o.ResourceVersion, Labels: c.labels(change)}

	if change.Handover != nil {
		sent.Annotations = map[string]*string{c.handover: change.Handover}
		if *change.Handover == "" {
			sent.Annotations[c.handover] = nil
		}
	}

	body, err := json.Marshal(document{Metadata: sent})
	if err != nil {
		return Object{}, fmt.Errorf("encode the labels of %s: %w", o.ID, err)
	}

	now, err := c.server.Patch(ctx, o.ID, body)
	if apierrors.IsForbidden(err) && MentionsPolicy(err.Error()) && change.Kind != "" {
		now, err = c.apply(ctx, o, change)
	}

	if err != nil {
		return Object{}, fmt.Errorf("label %s: %w", o.ID, err)
	}

	return c.Object(o.GVR, now), nil
}

// apply makes a change with server-side apply. Labels are removed that the same manager has applied before and does not
// apply again, unless they have other managers. So, to remove labels, it first changes only their values, which makes it
// their only manager.
func (c *Client) apply(ctx context.Context, o Object, change Change) (*metav1.PartialObjectMetadata, error) {
	now, err := c.server.Get(ctx, o.ID)
	if err != nil {
		return nil, err
	}

	if now.ResourceVersion != o.ResourceVersion {
		//nolint:wrapcheck // Label adds the context
		return nil, apierrors.NewConflict(o.GVR.GroupResource(), o.Name, errChanged)
	}

	sent := document{
		TypeMeta: metav1.TypeMeta{APIVersion: o.GVR.GroupVersion().String(), Kind: change.Kind},
		Metadata: metadataSent{Name: o.Name, Namespace: o.Namespace},
	}
	changes, mine, removes := c.labels(change), map[string]*string{}, false

	for _, key := range []string{c.shardLabel, c.drainLabel} {
		value, present := now.Labels[key]
		wanted, changed := changes[key]
		removes = removes || changed && wanted == nil

		switch {
		case present && changed && wanted == nil:
			mine[key] = new("")
		case present:
			mine[key] = &value
		}
	}

	if removes {
		sent.Metadata.Labels = mine
		if now, err = c.send(ctx, o.ID, sent, now); err != nil {
			return nil, err
		}
	}

	maps.Copy(mine, changes)
	maps.DeleteFunc(mine, func(_ string, value *string) bool { return value == nil })

	sent.Metadata.Labels, sent.Metadata.Annotations = mine, map[string]*string{c.handover: change.Handover}

	return c.send(ctx, o.ID, sent, now)
}

// send applies labels, and changes the handover annotation, by which an apply is recognized; nil keeps its value. If the
// value is the same, only the text of its JSON changes.
func (c *Client) send(
	ctx context.Context, id ID, sent document, now *metav1.PartialObjectMetadata,
) (*metav1.PartialObjectMetadata, error) {
	was := now.Annotations[c.handover]

	handover := cmp.Or(*cmp.Or(sent.Metadata.Annotations[c.handover], &was), "{}") // nothing follows the object
	if handover == was {
		if text, spaced := strings.CutSuffix(handover, " "); spaced {
			handover = text
		} else {
			handover += " "
		}
	}

	sent.Metadata.ResourceVersion, sent.Metadata.Annotations = now.ResourceVersion, map[string]*string{c.handover: &handover}

	body, err := json.Marshal(sent)
	if err != nil {
		return nil, fmt.Errorf("encode the labels of %s: %w", id, err)
	}

	return c.server.Apply(ctx, id, body, c.manager)
}
