package process

import (
	"errors"
	"fmt"
	"net"
)

// FreePorts returns as many different addresses of the loopback interface whose ports were free a moment ago.
func FreePorts(n int) ([]string, error) {
	var addresses []string
	var listeners []net.Listener
	var errs []error
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			errs = append(errs, err)
			break
		}
		listeners = append(listeners, listener)
		addresses = append(addresses, listener.Addr().String())
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
