package process

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

const (
	// Ports are taken from below those that Linux gives to connections by default (net.ipv4.ip_local_port_range), so that none
	// becomes the port of a connection before a process listens there, or while it is restarted.
	lowestPort, highestPort = 10_240, 32_767
	// tries is how many ports are tried for each that is wanted.
	tries = 100
)

// FreePorts returns as many different addresses of the loopback interface whose ports were free a moment ago.
func FreePorts(n int) ([]string, error) {
	var addresses []string
	var listeners []net.Listener
	var last error
	for range tries * n {
		if len(listeners) == n {
			break
		}
		port := lowestPort + rand.IntN(highestPort-lowestPort+1) //nolint:gosec // not a secret
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			last = err
			continue
		}
		listeners = append(listeners, listener)
		addresses = append(addresses, listener.Addr().String())
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
	return addresses, nil
}
