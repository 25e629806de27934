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
	// Ports are taken from below those that Linux gives to connections by default (net.ipv4.ip_local_port_range), so that none
	// becomes the port of a connection before a process listens there, or while it is restarted.
	lowestPort, highestPort = 10_240, 32_767
	// tries is how many ports are tried for each that is wanted.
	tries = 100
	// remembered is how many ports are not given a second time: who got them may not listen yet.
	remembered = 100
)

// given are the addresses that were given last.
var given struct {
	sync.Mutex
	addresses []string
}

// FreePorts returns as many different addresses of the loopback interface whose ports were free a moment ago, none of which was
// returned lately.
func FreePorts(n int) ([]string, error) {
	given.Lock()
	defer given.Unlock()
	var addresses []string
	var listeners []net.Listener
	var last error
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
	// Only now, so that no port is given twice.
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
