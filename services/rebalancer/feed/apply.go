package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
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

// configuration is an object as it is applied.
type configuration struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        appliedMetadata `json:"metadata"`
}

type appliedMetadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
}

// application is what is applied to an object.
type application struct {
	id     ID
	kind   string
	labels map[string]string
	// handover is the handover annotation; nil keeps what it says.
	handover *string
}

// apply makes a change with server-side apply. Labels are removed that the same manager has applied before and does not apply again, unless they have
// other managers. So, to remove labels, it first changes only their values, which makes it their only manager.
func (c *Client) apply(ctx context.Context, o Object, change Change) (*metav1.PartialObjectMetadata, error) {
	now, err := c.server.Get(ctx, o.ID)
	if err != nil {
		return nil, err
	}

	if now.ResourceVersion != o.ResourceVersion {
		return nil, apierrors.NewConflict(o.GVR.GroupResource(), o.Name, errChanged) //nolint:wrapcheck // Label adds the context
	}

	labels, mine := map[string]string{}, map[string]string{}

	for _, l := range []struct {
		key, value string
		remove     bool
	}{{c.shardLabel, change.Shard, change.RemoveShard}, {c.drainLabel, change.Drain, change.RemoveDrain}} {
		value, present := now.Labels[l.key]
		if mine[l.key] = value; !present {
			delete(mine, l.key)
		}

		switch {
		case l.remove && present:
			mine[l.key] = ""
		case l.value != "":
			labels[l.key] = l.value
		case present:
			labels[l.key] = value
		}
	}

	if change.RemoveShard || change.RemoveDrain {
		if now, err = c.send(ctx, application{o.ID, change.Kind, mine, nil}, now); err != nil {
			return nil, err
		}
	}

	return c.send(ctx, application{o.ID, change.Kind, labels, change.Handover}, now)
}

// send applies labels, and changes the handover annotation: an apply is recognized by this. If the handover is the same, only the text of its JSON changes.
func (c *Client) send(ctx context.Context, what application, now *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	was := now.Annotations[c.handover]

	handover := cmp.Or(*cmp.Or(what.handover, &was), "{}") // nothing follows the object
	if handover == was {
		if text, spaced := strings.CutSuffix(handover, " "); spaced {
			handover = text
		} else {
			handover += " "
		}
	}

	body, err := json.Marshal(configuration{
		TypeMeta: metav1.TypeMeta{APIVersion: what.id.GVR.GroupVersion().String(), Kind: what.kind},
		Metadata: appliedMetadata{
			Name: what.id.Name, Namespace: what.id.Namespace, ResourceVersion: now.ResourceVersion,
			Labels: what.labels, Annotations: map[string]string{c.handover: handover},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode the labels of %s: %w", what.id, err)
	}

	return c.server.Apply(ctx, what.id, body, c.manager)
}
