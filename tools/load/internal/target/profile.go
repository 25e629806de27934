package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sync/errgroup"
)

// sliceSeconds is the duration of one CPU profile. Longer profiles consist of several files, which `go tool pprof` merges.
const sliceSeconds = 2

// Profile profiles the services and the API server until the returned function is called. It writes CPU profiles to
// dir/name-service-cpu-N.pb.gz, and a heap profile at the end to dir/name-service-heap.pb.gz. [Options].Profile must be set. Profiling
// costs a few percent of CPU.
func (l *Local) Profile(ctx context.Context, dir, name string) (stop func() error) {
	var group errgroup.Group

	over, end := context.WithCancel(ctx)

	profile := func(process string, get func(path string) ([]byte, error)) {
		save := func(path, suffix string) error {
			body, err := get(path)
			if err != nil {
				return err
			}

			err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name+"-"+process+suffix), body, 0o600))
			if err != nil {
				return fmt.Errorf("write a profile: %w", err)
			}

			return nil
		}
		group.Go(func() error {
			for i := 0; over.Err() == nil; i++ {
				if err := save(fmt.Sprintf("/debug/pprof/profile?seconds=%d", sliceSeconds), "-cpu-"+strconv.Itoa(i)+".pb.gz"); err != nil {
					return err
				}
			}

			return save("/debug/pprof/heap", "-heap.pb.gz")
		})
	}

	for _, name := range Services {
		at := l.Addresses(name).Profiles
		profile(name, func(path string) ([]byte, error) { return get(ctx, "http://"+at+path) })
	}
	profile(APIServer, func(path string) ([]byte, error) { return l.get(ctx, path) })

	return func() error {
		end()

		if err := group.Wait(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("profile the services: %w", err)
		}

		return nil
	}
}
