package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

const (
	// standbyPeriod is how often a standby renews its own Lease.
	standbyPeriod = 10 * time.Second
	// standbyPrefix begins the name of a standby's Lease; the names of its ring and its Pod follow.
	standbyPrefix = "standby-"
	// goodbye limits the deletion of a standby's Lease.
	goodbye = 2 * time.Second
)

// standby is the Lease of a process that waits for a slot. It is no shard's Lease: it lacks the ring's label.
type standby struct {
	options Options
	client  coordinationv1client.LeaseInterface
	clock   clock.PassiveClock
	log     klog.Logger

	renewed time.Time // zero: the Lease does not exist, for all this process knows
	slots   string    // what it says about the slots that the process would take
}

// renew creates the Lease, or renews it if that is due or the process would take other slots than before. It reports whether the Lease is there.
// Without it, a Pod that stops does not wait for this process to take its slot.
func (s *standby) renew(ctx context.Context, slots []string) bool {
	now, before := s.clock.Now(), s.slots

	s.slots = contract.SlotsValue(s.options.Ring, slots)
	if now.Sub(s.renewed) < standbyPeriod && s.slots == before {
		return true
	}

	lease := s.lease(now)
	found, err := s.client.Get(ctx, lease.Name, metav1.GetOptions{})

	switch {
	case apierrors.IsNotFound(err):
		_, err = s.client.Create(ctx, lease, metav1.CreateOptions{})
	case err == nil: // by this process, or left by a predecessor
		lease.ResourceVersion = found.ResourceVersion
		_, err = s.client.Update(ctx, lease, metav1.UpdateOptions{})
	}

	first := s.renewed.IsZero()
	if err != nil {
		s.renewed = time.Time{}
		s.log.Error(err, "Could not write the Lease of this standby; a shard with slots needs get, create, update, and delete on leases in its namespace")

		return false
	}

	if s.renewed = now; first {
		s.log.Info("Waiting for a slot", "ring", s.options.Ring, "pod", s.options.Pod)
	}

	return true
}

func (s *standby) lease(now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.options.Namespace, Name: standbyName(s.options.Ring, s.options.Pod), Labels: map[string]string{contract.LabelStandby: s.options.Ring},
			Annotations: map[string]string{contract.AnnotationSlots: s.slots},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &s.options.Pod, LeaseDurationSeconds: new(int32(contract.StandbyDuration / time.Second)), RenewTime: new(metav1.NewMicroTime(now)),
		},
	}
	if s.options.PodUID != "" {
		// The garbage collector deletes what a standby that was killed has left.
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: s.options.Pod, UID: s.options.PodUID}}
	}

	return lease
}

// leave deletes the Lease.
func (s *standby) leave() {
	if s.renewed.IsZero() {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()

	name := standbyName(s.options.Ring, s.options.Pod)
	if err := s.client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		s.log.Error(err, "Could not delete the Lease of this standby", "lease", name)
	}
}

// standbyName returns the name of a standby's Lease. A Pod may wait for slots of several rings.
func standbyName(ring, pod string) string {
	name := standbyPrefix + ring + "-" + pod
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}

	return fmt.Sprintf("%s%016x", standbyPrefix, xxhash.Sum64String(name))
}
