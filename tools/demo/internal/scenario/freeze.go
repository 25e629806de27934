package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/example/history"
	"github.com/clusterring/clusterring/tools/example/website"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
)

// idleFor is how long the other shards must be idle before the frozen one is resumed, because events may still be on their way.
const idleFor = time.Second

// freeze freezes a shard during its work, waits until other shards have its objects, and resumes it.
func (s *Story) freeze(ctx context.Context) error {
	before, err := s.everything()
	if err != nil {
		return err
	}

	mark := s.objects.Mark()
	popular := before[observe.Key{Resource: websites, Namespace: namespaceOf(0), Name: "site-0"}]

	shard := s.living(popular.Shard)
	if shard == nil {
		return fmt.Errorf("the Website site-0 has the shard %q, which is not running", popular.Shard)
	}

	users := s.edit(ctx)
	begun, cut, err := s.freezeAtWork(ctx, shard)
	asleep := time.Now()

	if err == nil {
		s.console.Note("%s was frozen (SIGSTOP) during %d reconciles, while users edit its Websites", shard.Name, cut)
		err = s.replaced(ctx, loss{shard.Name, asleep, before, mark})
	}

	if err == nil {
		err = s.awaitReady(ctx)
	}

	if err := errors.Join(err, s.end(users)); err != nil {
		return err
	}
	s.console.Note("meanwhile, users made %d edits: none failed, the slowest took %s", users.edits, report.Seconds(users.slowest))
	// From here on, the other shards are idle: any write comes from the resumed shard.
	if err := s.awaitRendered(ctx); err != nil {
		return err
	}

	if err := s.awaitIdle(ctx); err != nil {
		return err
	}
	s.console.Note("%s is resumed (SIGCONT) after %s", shard.Name, seconds(asleep))

	took, err := s.wake(ctx, shard, asleep)
	if err != nil {
		return err
	}

	if err := s.beganNothing(shard, begun); err != nil {
		return err
	}
	s.ok("resumed during %d reconciles, it wrote no object, started no reconcile, and exited within %s", cut, report.Seconds(took))
	s.console.Note("a Deployment would restart it; the demo does not, because the new process would wait %s for its Lease", 2*localsystem.LeaseDuration)

	return s.noOverlap()
}

// freezeAtWork freezes the shard during at least one reconcile. It returns how many reconciles have begun so far, and how many of these
// have not ended.
func (s *Story) freezeAtWork(ctx context.Context, shard *process.Process) (begun, open int, err error) {
	look := func() (int, int, error) {
		reader, err := s.work()
		if err != nil {
			return 0, 0, err
		}

		spans, open := spansOf(reader.Spans(), shard.PID())

		return len(spans), open, nil
	}

	err = s.await(ctx, func(context.Context) (bool, string, error) {
		idle := shard.Name + " is idle"
		if _, open, err = look(); err != nil || open == 0 {
			return false, idle, err
		}

		if err := shard.Freeze(); err != nil {
			return false, "", err
		}

		if begun, open, err = look(); err != nil || open > 0 {
			return err == nil, "", err
		}

		return false, idle, shard.Thaw() // it has just become idle
	})
	if err == nil {
		s.lost[shard] = frozen
	}

	return begun, open, err
}

// wake resumes a frozen shard that has lost its Lease, and waits until it exits. It checks that the shard exited with an error, wrote no
// object of the ring, and does not hold its Lease. It returns how long the exit took.
func (s *Story) wake(ctx context.Context, shard *process.Process, asleep time.Time) (time.Duration, error) {
	before, err := s.versions(ctx)
	if err != nil {
		return 0, err
	}
	shard.MayEnd()

	woken := time.Now()

	s.pauses = append(s.pauses, pause{shard.PID(), asleep, woken})
	if err := shard.Thaw(); err != nil {
		return 0, err
	}

	timer := time.NewTimer(patience)
	defer timer.Stop()

	fault := func(format string, args ...any) error {
		return &services.FaultError{Process: shard.Name, Err: fmt.Errorf(shard.Name+" was resumed without its Lease, and "+format, args...)}
	}

	select {
	case <-shard.Exited():
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-timer.C:
		return 0, fault("is still running %s later", patience)
	}

	if shard.Err() == nil {
		return 0, fault("exited with code 0")
	}

	after, err := s.versions(ctx)
	if err != nil {
		return 0, err
	}

	if err := wrong("objects changed although only the resumed shard could have written them", differing(before, after)); err != nil {
		return 0, err
	}

	if turns, err := s.leases.Of(shard.Name); err != nil || len(turns) == 0 || turns[len(turns)-1].Holder == shard.Name {
		return 0, errors.Join(err, fault("took the Lease back"))
	}

	return shard.EndedAt().Sub(woken), nil
}

// beganNothing checks that a process has begun no reconcile since it was frozen.
func (s *Story) beganNothing(shard *process.Process, begun int) error {
	reader, err := s.work()
	if err != nil {
		return err
	}

	if spans, _ := spansOf(reader.Spans(), shard.PID()); len(spans) != begun {
		return &services.FaultError{
			Process: shard.Name, Err: fmt.Errorf("%s was resumed without its Lease, and began %d reconciles", shard.Name, len(spans)-begun),
		}
	}

	return nil
}

// versions returns the resourceVersion of every object that has a shard, read from the API server.
func (s *Story) versions(ctx context.Context) (map[string]string, error) {
	versions := map[string]string{}

	for _, kind := range shardedKinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)

		if err := s.client.List(ctx, list, client.HasLabels{v1alpha1.ShardLabel(localsystem.Ring)}); err != nil {
			return nil, fmt.Errorf("list %ss: %w", kind.Kind, err)
		}

		for i := range list.Items {
			versions[fmt.Sprintf("%s %s/%s", kind.Kind, list.Items[i].Namespace, list.Items[i].Name)] = list.Items[i].ResourceVersion
		}
	}

	return versions, nil
}

// differing returns the objects whose versions differ.
func differing(before, after map[string]string) []string {
	var found []string

	all := maps.Clone(before)
	maps.Copy(all, after)

	for name := range all {
		if before[name] != after[name] {
			found = append(found, fmt.Sprintf("%s: version %q became %q", name, before[name], after[name]))
		}
	}

	return found
}

// awaitRendered waits until the shards have no more work: every Website's page is in its ConfigMap with its checksum, and the status of the
// Website is up to date.
func (s *Story) awaitRendered(ctx context.Context) error {
	return s.await(ctx, func(ctx context.Context) (bool, string, error) {
		var (
			sites examplev1alpha1.WebsiteList
			all   corev1.ConfigMapList
		)
		if err := errors.Join(s.client.List(ctx, &sites), s.client.List(ctx, &all)); err != nil {
			return false, "", err
		}

		pages := map[string]*corev1.ConfigMap{}
		for i := range all.Items {
			pages[all.Items[i].Namespace+"/"+all.Items[i].Name] = &all.Items[i]
		}

		done := 0

		for i := range sites.Items {
			is, err := rendered(&sites.Items[i], pages[sites.Items[i].Namespace+"/"+sites.Items[i].Name])
			if err != nil {
				return false, "", err
			}

			if is {
				done++
			}
		}

		return done == s.created, fmt.Sprintf("of %d Websites, %d are rendered", s.created, done), nil
	})
}

// awaitIdle waits until the running shards have been idle for idleFor.
func (s *Story) awaitIdle(ctx context.Context) error {
	return s.await(ctx, func(context.Context) (bool, string, error) {
		reader, err := s.work()
		if err != nil {
			return false, "", err
		}

		now := reader.Instant(time.Now())

		for _, shard := range s.shards {
			if _, gone := s.lost[shard]; gone {
				continue
			}

			spans, open := spansOf(reader.Spans(), shard.PID())

			recent := slices.ContainsFunc(spans, func(span history.Span) bool { return span.End > now-idleFor })
			if open > 0 || recent {
				return false, fmt.Sprintf("%s is in %d reconciles, or was recently", shard.Name, open), nil
			}
		}

		return true, "", nil
	})
}

// rendered reports whether a Website needs no more work.
func rendered(site *examplev1alpha1.Website, page *corev1.ConfigMap) (bool, error) {
	if page == nil || site.Status.ObservedGeneration != site.Generation || !maps.Equal(page.Data, website.Render(site.Spec)) {
		return false, nil
	}

	sum, err := checksum.Of(page.Data)

	return page.Annotations[checksum.Annotation] == sum, err
}
