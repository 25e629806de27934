package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const (
	fleets = "fleets"
	ships  = "ships"

	// fleetsMade is the number of Fleets, shipsOfEach the number of Ships of each. The controller counts the Ships in its cache and creates
	// missing Ships with generated names. If it does not see a Ship, it creates another one.
	fleetsMade  = 100
	shipsOfEach = 3
)

// createFleets creates the Fleets, several at a time.
func (s *Story) createFleets(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(users)

	for i := range fleetsMade {
		group.Go(func() error {
			fleet := &examplev1alpha1.Fleet{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(i), Name: fmt.Sprintf("fleet-%d", i)},
				Spec:       examplev1alpha1.FleetSpec{Replicas: shipsOfEach},
			}
			if err := s.client.Create(ctx, fleet); err != nil {
				return fmt.Errorf("a user's create failed: %w", err)
			}

			return nil
		})
	}

	return group.Wait() //nolint:wrapcheck // wrapped above
}

// fleetsComplete counts the Fleets with an available shard whose Ships all have the same shard.
func (s *Story) fleetsComplete() (n int, err error) {
	main, err := s.fleets.Now(fleets)
	children, errOfShips := s.fleets.Now(ships)
	with := map[observe.Key]int{}

	for key, ship := range children {
		owner := observe.Key{Resource: fleets, Namespace: key.Namespace, Name: ship.Owner}
		if ship.Shard == main[owner].Shard && !ship.Draining {
			with[owner]++
		}
	}

	for key, fleet := range main {
		if s.isAvailable(fleet.Shard) && !fleet.Draining && with[key] == shipsOfEach {
			n++
		}
	}

	return n, errors.Join(err, errOfShips)
}

// noExcess checks the recorded changes: no Ship was created twice, and none is missing.
func (s *Story) noExcess() error {
	made, moves := map[observe.Key]map[string]bool{}, 0

	for _, c := range s.fleets.Since(0) {
		switch {
		case c.Key.Resource == fleets && c.Before.Shard != "" && c.Before.Shard != c.After.Shard:
			moves++
		case c.Key.Resource == ships && c.After.Owner != "":
			owner := observe.Key{Resource: fleets, Namespace: c.Key.Namespace, Name: c.After.Owner}
			if made[owner] == nil {
				made[owner] = map[string]bool{}
			}

			made[owner][c.Key.Name] = true
		}
	}

	var found []string

	for owner, names := range made {
		if len(names) != shipsOfEach {
			found = append(found, fmt.Sprintf("%d Ships of %s were created instead of %d:\n%s", len(names), owner, shipsOfEach, s.story(owner)))
		}
	}

	if len(made) != fleetsMade {
		found = append(found, fmt.Sprintf("%d of %d Fleets have Ships", len(made), fleetsMade))
	}

	if err := wrong("a move made a controller create an object twice or miss an object", found); err != nil {
		return err
	}
	s.ok("%d Fleets moved %d times, and their controllers counted correctly: of %d Ships, none was created twice, none is missing",
		fleetsMade, moves, fleetsMade*shipsOfEach)

	return nil
}

// story returns the changes of a Fleet and its Ships, one per line, the oldest first.
func (s *Story) story(fleet observe.Key) string {
	var told []observe.Change

	for _, c := range s.fleets.Since(0) {
		ofIt := c.Key.Resource == ships && c.Key.Namespace == fleet.Namespace && fleet.Name == cmp.Or(c.After.Owner, c.Before.Owner)
		if c.Key == fleet || ofIt {
			told = append(told, c)
		}
	}
	slices.SortStableFunc(told, func(a, b observe.Change) int { return cmp.Compare(a.Version, b.Version) })

	var text strings.Builder

	for _, c := range told {
		now := c.After.String()
		if c.Deleted {
			now = "deleted"
		}
		fmt.Fprintf(&text, "    %s version %d: %s is %s\n", c.At.Format("15:04:05.000"), c.Version, c.Key, now)
	}

	return strings.TrimSuffix(text.String(), "\n")
}
