package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// join starts the first shards.
func (s *Story) join(ctx context.Context) {
	names := s.start(ctx, shardsFirst)
	s.ok("%s hold their Leases", strings.Join(names, ", "))

	s.awaitReady(ctx)
	ring := s.ring.Stored(ctx)
	s.ok("the ring is Ready, %d of %d shards available, after %s", ring.Status.AvailableShards, ring.Status.Shards,
		seconds(s.began))

	for _, name := range names {
		s.awaitState(ctx, name, "ready")
	}

	webhook := client.ObjectKey{Name: contract.WebhookConfigurationName(localsystem.Ring)}
	must.Do(s.client.Get(ctx, webhook, &admissionregistrationv1.MutatingWebhookConfiguration{}))
	s.ok("every Lease is ready, the webhook is registered")
}

// create creates the objects.
func (s *Story) create(ctx context.Context) {
	s.createNamespaces(ctx)

	begin, made := time.Now(), s.createWebsites(ctx, s.sites)
	must.Hold(made.assigned == s.sites, "only %d of %d objects were assigned in admission", made.assigned, s.sites)
	s.ok("%d of %d Websites were assigned in admission (in %s, slowest create %s)", s.sites, s.sites,
		seconds(begin), report.Seconds(made.slowest))

	s.createFleets(ctx)
	s.awaitInPlace(ctx)
	s.ok("%d ConfigMaps were created, each with the shard of its Website; also %d Ships of %d Fleets", s.sites,
		fleets*system.ShipsOfEach, fleets)
	s.awaitReady(ctx)
}

// kill kills a shard.
func (s *Story) kill(ctx context.Context) {
	shard := s.running()[0]
	shard.lost = killed
	must.Do(shard.Kill())
	s.console.Note("%s was killed without releasing its Lease of %s", shard.Name, localsystem.LeaseDuration)

	s.awaitReplaced(ctx, shard, shard.EndedAt())
	s.ok("none of the %d objects of other shards changed", len(s.before)-s.before.at(shard.Name))
	s.awaitReady(ctx)
}

// leave stops a shard with SIGTERM.
func (s *Story) leave(ctx context.Context) {
	shard, told := s.running()[0], time.Now()
	shard.lost = stopped
	must.Do(shard.Terminate())
	s.awaitInPlace(ctx)
	s.awaitExit(ctx, shard)

	if err := shard.Err(); err != nil {
		must.Do(fault(shard.Process, "did not stop gracefully: %w", err))
	}

	moved := s.onlyMoved(shard.Name)
	s.ok("%s finished its work and released its Lease after %s", shard.Name, report.Seconds(s.released(shard.Name, told)))

	after := func(move change) string { return report.Seconds(move.after.At - record.At(told)) }
	s.ok("its %d objects moved %s to %s after the signal; no other object moved", s.before.at(shard.Name),
		after(moved[0]), after(moved[len(moved)-1]))
	s.awaitReady(ctx)
}

// awaitReplaced waits until the Lease of a shard that has been silent since the given time was taken, and other shards
// have its objects. It checks that no object moved before, and that no object of another shard moved.
func (s *Story) awaitReplaced(ctx context.Context, shard *shard, silent time.Time) {
	dead := s.awaitDeath(ctx, shard.Name, silent)
	s.awaitInPlace(ctx)

	moved := s.onlyMoved(shard.Name)
	for _, move := range moved {
		must.Hold(move.after.Number >= dead.Number, "an object left before the Lease of %s was taken: %s", shard.Name, move)
	}
	s.ok("all of its %d objects moved: none before the Lease was dead, the last %s after", s.before.at(shard.Name),
		report.Seconds(moved[len(moved)-1].after.At-dead.At))
}

// onlyMoved checks that since the step began, all objects of the lost shard have moved, and the labels of no other
// object have changed. It returns the moves in the order in which they were seen; there is at least one.
func (s *Story) onlyMoved(lost string) []change {
	var moved, others []change

	for _, c := range s.before.changes(s.versions()[s.old:]) {
		switch {
		case c.before.Shard == lost && c.moved():
			moved = append(moved, c)
		case c.before.Shard != lost && c.before.Shard != "":
			others = append(others, c)
		}
	}

	n, has := len(s.before.moves(s.objects())), s.before.at(lost)
	must.Hold(n == has && n > 0, "%d objects moved, but %s had %d", n, lost, has)
	must.None("objects moved for no reason", others)

	return moved
}

// awaitDeath waits until the Lease of a shard that has been silent since the given time is dead, checks its states on
// the way, and returns the version in which the Lease was taken.
func (s *Story) awaitDeath(ctx context.Context, shard string, silent time.Time) check.Version {
	s.awaitState(ctx, shard, "dead")

	taken, at, path, renewed := check.Version{}, map[string]time.Duration{}, "", time.Time{}

	for _, v := range s.lease(shard) {
		if v.Holder == shard && taken.Number == 0 {
			renewed = v.Renewed
		}

		if v.At < record.At(silent) {
			continue
		}

		if _, known := at[v.State]; !known {
			path, at[v.State] = path+" "+v.State, v.At-record.At(silent)
		}

		if v.Holder != shard && taken.Number == 0 {
			taken = v
		}
	}

	must.Hold(path == " expired uncertain dead" || path == " ready expired uncertain dead",
		"the Lease of %s went through the states%s, not expired, uncertain, dead", shard, path)
	must.Hold(taken.Holder == contract.LeaseControllerIdentity, "the Lease of %s was taken by %q", shard, taken.Holder)

	// Shards and the monitor share one clock here. There is no upper bound: a late taking only shows that the machine is
	// busy.
	kept := taken.Renewed.Sub(renewed)
	must.Hold(kept >= 2*localsystem.LeaseDuration,
		"the Lease of %s was taken %s after its last renewal, which is less than twice its duration, %s",
		shard, report.Seconds(kept), localsystem.LeaseDuration)
	s.ok("its Lease (%s) was expired after %s, uncertain after %s, dead after %s", localsystem.LeaseDuration,
		report.Seconds(at["expired"]), report.Seconds(at["uncertain"]), report.Seconds(at["dead"]))

	return taken
}

// released returns how long after a point in time the shard released its Lease, and checks that the Lease did not
// expire.
func (s *Story) released(shard string, told time.Time) time.Duration {
	for _, v := range s.lease(shard) {
		if v.At < record.At(told) {
			continue
		}

		must.Hold(v.State != "expired" && v.State != "uncertain", "the Lease of %s was %s after the shard received SIGTERM",
			shard, v.State)

		if v.Holder == "" {
			return v.At - record.At(told)
		}
	}

	must.Do(fmt.Errorf("%s has not released its Lease", shard))

	return 0
}

// grow lets two shards join while users edit their Websites.
func (s *Story) grow(ctx context.Context) {
	var joined []string

	edited := s.underLoad(ctx, false, func(ctx context.Context, _ *users) {
		joined = s.start(ctx, 2)
		s.awaitReady(ctx)
		s.awaitInPlace(ctx)
	})

	took := seconds(s.began)
	s.console.Note("%s joined; meanwhile, users made %d edits: none failed, the slowest took %s",
		strings.Join(joined, " and "), edited.edits, report.Seconds(edited.slowest))
	s.verifyShare(joined)
	s.verify()
	s.ok("each was drained and released first, and its ConfigMap after it; took %s", took)
	s.verifyShips()
}

// verifyShare checks that the joined shards got their share of the Websites, and that no object moved to another shard.
func (s *Story) verifyShare(joined []string) {
	moves, sites := s.before.moves(s.objects()), float64(len(s.before.websites()))
	moved := 0.0

	for _, move := range moves {
		if move.after.Kind == check.Website {
			moved++
		}
	}

	unwanted := slices.DeleteFunc(moves, func(move change) bool { return slices.Contains(joined, move.after.Shard) })
	must.None("objects moved between shards that existed before", unwanted)

	ideal := float64(len(joined)) / float64(len(s.running()))
	// 5 % for the ring's bound, and three standard deviations for so few objects.
	tolerance := 0.05*ideal + 3*math.Sqrt(ideal*(1-ideal)/sites)

	figures := fmt.Sprintf("%.1f %% of %.0f Websites moved (ideal %.1f ± %.1f)", 100*moved/sites, sites, 100*ideal,
		100*tolerance)
	must.Hold(math.Abs(moved/sites-ideal) <= tolerance, "the new shards did not get their share: %s", figures)
	s.ok("%s, all to the new shards", figures)
}

// freeze freezes a shard during its work, waits until other shards have its objects, and resumes it.
func (s *Story) freeze(ctx context.Context) {
	shard := s.serving(s.before.named(check.Website, "site-0").Shard) // users edit it

	var (
		asleep     time.Time
		begun, cut int
	)

	edited := s.underLoad(ctx, false, func(ctx context.Context, _ *users) {
		begun, cut = s.freezeAtWork(ctx, shard)
		asleep = time.Now()
		s.console.Note("%s was frozen (SIGSTOP) during %d reconciles, while users edit its Websites", shard.Name, cut)
		s.awaitReplaced(ctx, shard, asleep)
		s.awaitReady(ctx)
	})
	s.console.Note("meanwhile, users made %d edits: none failed, the slowest took %s", edited.edits,
		report.Seconds(edited.slowest))
	// From here on, the other shards are idle: any write comes from the resumed shard.
	s.awaitRendered(ctx)
	s.awaitIdle(ctx)
	s.console.Note("%s is resumed (SIGCONT) after %s", shard.Name, seconds(asleep))

	took := s.resume(ctx, shard, asleep)

	if spans, _ := system.Of(s.reconciles(), shard.PID()); len(spans) != begun {
		must.Do(fault(shard.Process, "was resumed without its Lease, and began %d reconciles", len(spans)-begun))
	}
	s.ok("resumed during %d reconciles, it wrote no object, started no reconcile, and exited within %s", cut,
		report.Seconds(took))
	s.refused(shard)
	s.console.Note("a Deployment would restart it; the demo does not, because the new process would wait %s for its Lease",
		2*localsystem.LeaseDuration)
	s.verify()
}

// refused checks that the fence refused every write of the resumed shard, whose workers write without a look at their
// Lease.
func (s *Story) refused(shard *shard) {
	file, err := os.Open(s.system.CarelessFile(shard.Name))
	must.Do(err)

	writes, err := history.ReadCarelessWrites(file)
	must.Do(errors.Join(err, file.Close()))

	refused, others := history.Refused(writes, localsystem.Ring)
	must.None("the fence did not refuse writes of the resumed shard", others)

	if refused == 0 {
		must.Do(fault(shard.Process, "was resumed during reconciles, but its workers tried no write"))
	}
	s.ok("its workers did not check their Lease before they wrote: the API server refused each of %d writes", refused)
}

// freezeAtWork freezes the shard during at least one reconcile. It returns how many reconciles have begun so far, and
// how many of these have not ended.
func (s *Story) freezeAtWork(ctx context.Context, shard *shard) (begun, open int) {
	atWork := func() bool {
		spans, n := system.Of(s.reconciles(), shard.PID())
		begun, open = len(spans), n

		return open > 0
	}

	s.until(ctx, func(context.Context) {
		must.Hold(atWork(), "%s is idle", shard.Name)
		must.Do(shard.Freeze())

		if !atWork() {
			must.Do(errors.Join(errors.New(shard.Name+" has just become idle"), shard.Thaw()))
		}
	})

	shard.lost = frozen

	return begun, open
}

// resume resumes a frozen shard that has lost its Lease, and waits until it exits. It checks that the shard exited with
// an error, wrote no object of the ring, and does not hold its Lease. It returns how long the exit took.
func (s *Story) resume(ctx context.Context, shard *shard, asleep time.Time) time.Duration {
	labelled := client.HasLabels{contract.ShardLabel(localsystem.Ring)}
	before := system.Stored(ctx, s.client, labelled)

	shard.MayEnd()

	resumed := time.Now()
	s.pauses = append(s.pauses, check.Frozen{PID: shard.PID(), From: record.At(asleep), Until: record.At(resumed)})
	must.Do(shard.Thaw())
	s.awaitExit(ctx, shard)

	if shard.Err() == nil {
		must.Do(fault(shard.Process, "was resumed without its Lease, and exited with code 0"))
	}

	after := system.Stored(ctx, s.client, labelled)
	changed := maps.Clone(before)
	maps.Copy(changed, after)
	maps.DeleteFunc(changed, func(name string, _ metav1.PartialObjectMetadata) bool {
		return before[name].ResourceVersion == after[name].ResourceVersion
	})
	must.None("objects changed although only the resumed shard could have written them",
		slices.Sorted(maps.Keys(changed)))

	if lease := s.lease(shard.Name); len(lease) == 0 || lease[len(lease)-1].Holder == shard.Name {
		must.Do(fault(shard.Process, "was resumed without its Lease, and took it back"))
	}

	return shard.EndedAt().Sub(resumed)
}

// outage stops the assigner and starts it again.
func (s *Story) outage(ctx context.Context) {
	const during, afterwards = 50, 20 // Websites that are created while the assigner is stopped, and after it is back

	s.end(services.Assigner)

	made := s.createWebsites(ctx, during)
	must.Hold(made.assigned == 0, "%d objects were assigned in admission although no assigner was running", made.assigned)
	s.ok("without an assigner, %d of %d creates succeeded, unassigned (slowest %s)", during, during,
		report.Seconds(made.slowest))

	s.awaitInPlace(ctx)
	s.ok("the rebalancer assigned each within %s, and their ConfigMaps followed",
		report.Seconds(slices.Max(append(s.waits(s.old), 0))))

	must.Do(s.system.Resume(ctx, services.Assigner))

	made = s.createWebsites(ctx, afterwards)
	must.Hold(made.assigned == afterwards, "with the assigner back, only %d of %d creates were assigned in admission",
		made.assigned, afterwards)
	s.ok("with the assigner back, %d of %d creates were assigned in admission", afterwards, afterwards)
	s.awaitInPlace(ctx)
	s.awaitReady(ctx)
}

// waits returns the times, sorted, that Websites were without a shard after they were created, from that version on.
func (s *Story) waits(from int) []time.Duration {
	created := map[string]time.Duration{}

	var waits []time.Duration

	for _, c := range s.before.changes(s.versions()[from:]) {
		switch v := c.after; {
		case v.Kind != check.Website:
		case c.before.UID == "":
			created[v.UID] = v.At
		case c.before.Shard == "":
			waits = append(waits, v.At-created[v.UID])
		}
	}

	slices.Sort(waits)

	return waits
}

// remove deletes the ring while its shards work and users edit and create Websites.
func (s *Story) remove(ctx context.Context) {
	const afterwards = 20 // Websites that users create after the ring is gone

	var (
		began, gone       time.Time
		before, meanwhile done
	)

	all := s.underLoad(ctx, true, func(ctx context.Context, u *users) {
		s.until(ctx, func(context.Context) {
			before = u.soFar()
			must.Hold(before.edits > 0 && before.creates > 0, "the first edits and creates")
		})

		began, before = time.Now(), u.soFar()
		s.deleteRing(ctx)

		gone, meanwhile = time.Now(), u.soFar()

		s.until(ctx, func(context.Context) {
			n := u.soFar().creates - meanwhile.creates
			must.Hold(n >= afterwards, "users have created %d Websites since the ring was gone", n)
		})
	})
	s.ok("the ring was gone after %s; of %d creates and %d edits meanwhile, none failed (slowest %s)",
		report.Seconds(gone.Sub(began)), meanwhile.creates-before.creates, meanwhile.edits-before.edits,
		report.Seconds(all.slowest))

	webhook := &admissionregistrationv1.MutatingWebhookConfiguration{}
	webhook.Name = contract.WebhookConfigurationName(localsystem.Ring)
	s.awaitGone(ctx, webhook, func() string { return "the webhook configuration is still there" })
	s.ok("the webhook configuration is gone")
	s.leftAlone(ctx, all.creates-before.creates)
	s.verify()

	worked := 0

	for _, span := range s.reconciles() {
		if span.Start < record.At(gone) && (span.End == 0 || span.End > record.At(began)) {
			worked++
		}
	}

	must.Hold(worked > 0, "no shard worked while the ring was deleted, so the step proves nothing")
	s.ok("shards released each object first, then its ConfigMap, during %d reconciles", worked)
}

// deleteRing deletes the ring if it exists, and waits until it is gone.
func (s *Story) deleteRing(ctx context.Context) {
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: localsystem.Ring}}
	must.Do(client.IgnoreNotFound(s.client.Delete(ctx, ring)))
	s.awaitGone(ctx, ring, func() string {
		left := s.objects()

		return fmt.Sprintf("the ring has the finalizers %v; %d of %d objects are unassigned", ring.Finalizers, left.at(""),
			len(left))
	})
}

// leftAlone checks that no object has a label of a ring, and that all Websites still exist.
func (s *Story) leftAlone(ctx context.Context, created int) {
	all, sites := system.Stored(ctx, s.client), 0
	for name := range all {
		if strings.HasPrefix(name, check.Website+" ") {
			sites++
		}
	}

	must.None("the deleted ring has left labels behind", system.Labelled(all))
	must.Hold(sites == s.created, "%d Websites exist, but %d were created", sites, s.created)
	s.until(ctx, func(context.Context) {
		seen := s.objects()
		must.Hold(seen.at("") == len(seen), "the watches have not caught up")
	})
	s.ok("no label is left on any of %d objects, %d of them created since the deletion began", len(all), created)
}

// review checks what must hold throughout the demo.
func (s *Story) review(ctx context.Context) {
	must.Do(s.system.Ready(ctx, services.LeaseMonitor, services.Assigner, services.Rebalancer, localsystem.RingQuery1,
		localsystem.RingQuery2))
	s.ok("all services are ready; no process exited by itself, except the resumed shard")
	s.verify()
	s.verifyShips()

	must.Do(s.system.Logged("forbidden", "panic", "data race"))
	s.ok("no log of %d services and shards contains forbidden or panic", len(s.system.Members()))
}

// verify checks everything recorded so far: no two shards worked at the same time on one object, or on an object and an
// object that it controls; no shard began to work without its Lease; no object left a shard that held its Lease without
// a drain, and no controlled object before its owner. A frozen process does no work.
func (s *Story) verify() {
	all := s.reconciles()

	for _, shard := range s.shards {
		if _, open := system.Of(all, shard.PID()); shard.lost == stopped && open > 0 {
			must.Do(fault(shard.Process, "stopped gracefully, but during %d reconciles", open))
		}
	}

	run := check.Run{Versions: s.versions(), Spans: s.system.Closed(all), Frozen: s.pauses}
	must.None("a guarantee was violated", check.Safety(run))
	s.ok("%d reconciles recorded: no two shards worked on one object at the same time", len(all))
}

// verifyShips checks everything recorded so far: no Ship was created twice, and none is missing.
func (s *Story) verifyShips() {
	versions := s.versions()
	excess, missing := check.Excess(versions)
	must.Hold(excess+missing == 0, "a move made a controller create %d Ships twice, or miss %d Ships", excess, missing)
	s.ok("%d Fleets moved %d times, and their controllers counted correctly: "+
		"of %d Ships, none was created twice, none is missing",
		fleets, check.Moves(versions), fleets*system.ShipsOfEach)
}
