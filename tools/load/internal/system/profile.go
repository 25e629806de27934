package system

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"
)

// sliceSeconds is how long one CPU profile lasts. The profile of a longer time is several files, which `go tool pprof` adds up.
const sliceSeconds = 2

// Profile begins to profile the services into files of dir, until the function that it returns is called: the CPU as
// name-service-cpu-N.pb.gz, and at the end the heap as name-service-heap.pb.gz. The services must have been started with
// [Options].Profile. Profiling costs the services a few percent of CPU.
func (s *System) Profile(ctx context.Context, dir, name string) (stop func() error) {
	var group errgroup.Group
	over := make(chan struct{})
	for _, service := range s.services {
		group.Go(func() error {
			file := filepath.Join(dir, name+"-"+service.name)
			for i := 0; !closed(over); i++ {
				url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", service.pprof, sliceSeconds)
				if err := save(ctx, url, file+"-cpu-"+strconv.Itoa(i)+".pb.gz"); err != nil {
					return err
				}
			}
			return save(ctx, "http://"+service.pprof+"/debug/pprof/heap", file+"-heap.pb.gz")
		})
	}
	end := sync.OnceFunc(func() { close(over) })
	return func() error {
		end()
		if err := group.Wait(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("profile the services: %w", err)
		}
		return nil
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// save writes what a URL answers into a file.
func save(ctx context.Context, url, file string) error {
	body, status, err := get(ctx, http.DefaultClient, url)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("get %s: status %d: %s", url, status, body)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, body, 0o600)); err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}
	return nil
}
