package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
)

const (
	// Ports are below the default range of Linux for outgoing connections (net.ipv4.ip_local_port_range), so that no connection takes a
	// port before a process listens there, or while the process restarts.
	lowestPort, highestPort = 10_240, 32_767
	// tries is the number of attempts for each port.
	tries = 100
	// remembered is the number of recent ports that are not returned again, because their users may not listen yet.
	remembered = 100
)

// given contains the addresses that were returned recently.
var given struct {
	sync.Mutex
	addresses []string
}

// FreePorts returns n different addresses of the loopback interface with free ports. It does not return recently returned addresses.
func FreePorts(n int) ([]string, error) {
	given.Lock()
	defer given.Unlock()

	var (
		addresses []string
		listeners []net.Listener
		last      error
	)

	for range tries * n {
		if len(listeners) == n {
			break
		}

		port := lowestPort + rand.IntN(highestPort-lowestPort+1) //nolint:gosec // not a secret

		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if slices.Contains(given.addresses, address) {
			continue
		}

		listener, err := net.Listen("tcp", address)
		if err != nil {
			last = err
			continue
		}

		listeners = append(listeners, listener)
		addresses = append(addresses, address)
	}

	var errs []error
	if len(listeners) < n {
		errs = append(errs, last)
	}
	// Closed only now, so that no port is chosen twice.
	for _, listener := range listeners {
		errs = append(errs, listener.Close())
	}

	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("find free ports: %w", err)
	}

	given.addresses = append(given.addresses, addresses...)
	given.addresses = given.addresses[max(0, len(given.addresses)-remembered):]

	return addresses, nil
}
