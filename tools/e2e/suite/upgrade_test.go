package suite_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
)

// upgrade installs the previous version on a cluster that has nothing, applies this one under load, and removes it.
func (s *suite) upgrade(t *testing.T) {
	if s.previous == "" {
		t.Skip("E2E_PREVIOUS is not set: make e2e has found no commit to upgrade from")
	}
	s.absent(t)
	began := s.Clock.Now()
	s.apply(t, version{
		definitions: []string{"-f", filepath.Join(s.previous, "crd.yaml")},
		all:         []string{"-f", filepath.Join(s.previous, "all.yaml")},
	})
	s.note(t, "the previous version is ready after", s.Clock.Since(began).Round(time.Second))
	s.admission(t)
	t.Run("UnderLoad", s.upgradeUnderLoad)
	t.Run("Removal", s.removalAtOnce)
}

// upgradeUnderLoad applies this version, first of the services and then of the shards, while Websites are created.
func (s *suite) upgradeUnderLoad(t *testing.T) {
	ctx := t.Context()
	oneAtATime := s.follow(t, cluster.NewRing("e2e-upgrade"))
	ring := s.ring(t, "upgrade", 3)
	before := s.images(t)

	run := s.pressure(t, ring, s.size.rate)
	s.lasts(t, run, between)
	began := s.Clock.Now()
	s.apply(t, s.present())
	s.note(t, "services upgraded after", s.Clock.Since(began).Round(100*time.Millisecond))

	for d, image := range s.images(t) {
		assert.NotEqual(t, before[d], image, "%s is upgraded", d)
	}
	s.lasts(t, run, between)

	began = s.Clock.Now()
	image, err := s.Image(ctx, cluster.Example.Shards)
	require.NoError(t, err)
	require.NoError(t, s.SetImage(ctx, ring.Shards, image))
	require.NoError(t, s.Restart(ctx, ring.Shards), "also if the image is the same")
	require.NoError(t, s.Rolled(ctx, ring.Shards, patience))
	s.note(t, "shards upgraded after", s.Clock.Since(began).Round(100*time.Millisecond))
	s.lasts(t, run, between)

	s.assignedAtOnce(t, s.noneFailed(t, run))
	began = s.Clock.Now()
	s.complete(t, ring, 3)
	s.note(t, "complete after the load", s.Clock.Since(began).Round(100*time.Millisecond))
	oneAtATime(t)
}

// images returns what the services run.
func (s *suite) images(t *testing.T) map[string]string {
	t.Helper()

	all := map[string]string{}

	for _, name := range services {
		image, err := s.Image(t.Context(), service(name))
		require.NoError(t, err)

		all[name] = image
	}

	return all
}
