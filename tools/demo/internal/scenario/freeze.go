package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// freeze freezes a shard during its work, waits until other shards have its objects, and resumes it.
func (s *Story) freeze(ctx context.Context) error {
	popular := s.before.Named(check.Website, "site-0").Shard // users edit it

	i := slices.IndexFunc(s.running(), func(shard *shard) bool { return shard.Name == popular })
	if i < 0 {
		return fmt.Errorf("the Website site-0 has the shard %q, which is not running", popular)
	}

	shard := s.running()[i]

	var (
		asleep     time.Time
		begun, cut int
	)

	edited, err := s.underLoad(ctx, false, func(ctx context.Context, _ *users) (err error) {
		if begun, cut, err = s.freezeAtWork(ctx, shard); err != nil {
			return err
		}

		asleep = time.Now()
		s.console.Note("%s was frozen (SIGSTOP) during %d reconciles, while users edit its Websites", shard.Name, cut)

		if err := s.awaitReplaced(ctx, shard, asleep); err != nil {
			return err
		}

		return s.awaitReady(ctx)
	})
	if err != nil {
		return err
	}
	s.console.Note("meanwhile, users made %d edits: none failed, the slowest took %s", edited.edits, report.Seconds(edited.slowest))
	// From here on, the other shards are idle: any write comes from the resumed shard.
	if err := inOrder(ctx, s.awaitRendered, s.awaitIdle); err != nil {
		return err
	}
	s.console.Note("%s is resumed (SIGCONT) after %s", shard.Name, seconds(asleep))

	took, err := s.resume(ctx, shard, asleep)
	if err != nil {
		return err
	}

	if spans, _ := spansOf(s.reconciles(), shard.PID()); len(spans) != begun {
		return fault(shard.Process, "was resumed without its Lease, and began %d reconciles", len(spans)-begun)
	}
	s.ok("resumed during %d reconciles, it wrote no object, started no reconcile, and exited within %s", cut, report.Seconds(took))

	if err := s.refused(shard); err != nil {
		return err
	}
	s.console.Note("a Deployment would restart it; the demo does not, because the new process would wait %s for its Lease", 2*localsystem.LeaseDuration)

	return s.verify(ctx)
}

// refused checks that the fence refused every write of the resumed shard, whose workers write without a look at their Lease.
func (s *Story) refused(shard *shard) error {
	file, err := os.Open(s.system.CarelessFile(shard.Name))
	if err != nil {
		return fmt.Errorf("read what %s wrote: %w", shard.Name, err)
	}

	writes, err := history.ReadCarelessWrites(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("read what %s wrote: %w", shard.Name, err)
	}

	refused, others := history.Refused(writes, localsystem.Ring)
	if err := wrong("the fence did not refuse writes of the resumed shard", others); err != nil {
		return err
	}

	if refused == 0 {
		return fault(shard.Process, "was resumed during reconciles, but its workers tried no write")
	}
	s.ok("its workers did not check their Lease before they wrote: the API server refused each of %d writes", refused)

	return nil
}

// freezeAtWork freezes the shard during at least one reconcile. It returns how many reconciles have begun so far, and how many of these
// have not ended.
func (s *Story) freezeAtWork(ctx context.Context, shard *shard) (begun, open int, err error) {
	atWork := func() bool {
		spans, n := spansOf(s.reconciles(), shard.PID())
		begun, open = len(spans), n

		return open > 0
	}

	err = s.await(ctx, func(context.Context) (string, error) {
		idle := shard.Name + " is idle"
		if !atWork() {
			return idle, nil
		}

		if err := shard.Freeze(); err != nil || atWork() {
			return "", err
		}

		return idle, shard.Thaw() // it has just become idle
	})
	shard.lost = frozen

	return begun, open, err
}

// resume resumes a frozen shard that has lost its Lease, and waits until it exits. It checks that the shard exited with an error, wrote no
// object of the ring, and does not hold its Lease. It returns how long the exit took.
func (s *Story) resume(ctx context.Context, shard *shard, asleep time.Time) (time.Duration, error) {
	labelled := client.HasLabels{contract.ShardLabel(localsystem.Ring)}

	before, err := s.stored(ctx, labelled)
	if err != nil {
		return 0, err
	}
	shard.MayEnd()

	resumed := time.Now()

	s.pauses = append(s.pauses, check.Frozen{PID: shard.PID(), From: record.At(asleep), Until: record.At(resumed)})
	if err := shard.Thaw(); err != nil {
		return 0, err
	}

	if err := s.awaitExit(ctx, shard); err != nil {
		return 0, fmt.Errorf("%s was resumed without its Lease: %w", shard.Name, err)
	}

	if shard.Err() == nil {
		return 0, fault(shard.Process, "was resumed without its Lease, and exited with code 0")
	}

	after, err := s.stored(ctx, labelled)
	if err != nil {
		return 0, err
	}

	changed := maps.Clone(before)
	maps.Copy(changed, after)
	maps.DeleteFunc(changed, func(name string, _ metav1.PartialObjectMetadata) bool {
		return before[name].ResourceVersion == after[name].ResourceVersion
	})

	err = wrong("objects changed although only the resumed shard could have written them", slices.Sorted(maps.Keys(changed)))
	if err != nil {
		return 0, err
	}

	if lease := s.lease(shard.Name); len(lease) == 0 || lease[len(lease)-1].Holder == shard.Name {
		return 0, fault(shard.Process, "was resumed without its Lease, and took it back")
	}

	return shard.EndedAt().Sub(resumed), nil
}
