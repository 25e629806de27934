package kit

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// addressSuffix ends the name of every flag that holds a listening address.
const addressSuffix = "bind-address"

// bindFlags returns the flags that hold a listening address which is in use ("" and "0" turn a server off).
func bindFlags(fs *pflag.FlagSet) []*pflag.Flag {
	var flags []*pflag.Flag
	fs.VisitAll(func(f *pflag.Flag) {
		if v := f.Value.String(); strings.HasSuffix(f.Name, addressSuffix) && v != "" && v != "0" {
			flags = append(flags, f)
		}
	})

	return flags
}

// validateAddresses checks the form of every listening address, and that no two flags ask for the same port.
func validateAddresses(fs *pflag.FlagSet) error {
	var errs []error

	taken := map[string]string{}

	for _, f := range bindFlags(fs) {
		address := f.Value.String()

		host, port, err := net.SplitHostPort(address)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q is no address: want host:port, :port, or 0 for off", f.Name, address))
			continue
		}

		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q: port must be a number from 0 to 65535", f.Name, address))
			continue
		}

		key := net.JoinHostPort(host, port)
		if other, ok := taken[key]; ok && number != 0 {
			errs = append(errs, fmt.Errorf("--%s and --%s are both %q; each needs a port of its own", other, f.Name, address))
		}

		taken[key] = f.Name
	}

	return errors.Join(errs...)
}

// probeAddresses listens on every address for a moment. The servers bind later, some of them only once the caches are
// filled; a taken port shall be told before anything has happened.
func probeAddresses(fs *pflag.FlagSet) error {
	var errs []error

	for _, f := range bindFlags(fs) {
		listener, err := net.Listen("tcp", f.Value.String())
		if err != nil {
			errs = append(errs, listenError(f, err))
			continue
		}

		if err := listener.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the probe of --%s: %w", f.Name, err))
		}
	}

	return errors.Join(errs...)
}

// explainListen names the flag behind an error to listen that a server met later on; other errors pass unchanged.
func explainListen(fs *pflag.FlagSet, err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "listen" || op.Addr == nil {
		return err
	}

	for _, f := range bindFlags(fs) {
		address, resolveErr := net.ResolveTCPAddr("tcp", f.Value.String())
		if resolveErr == nil && address.String() == op.Addr.String() {
			return listenError(f, op)
		}
	}

	return err
}

func listenError(f *pflag.Flag, err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}

	return fmt.Errorf("cannot listen on %s (--%s): %w; choose another address or stop what uses it", f.Value, f.Name, err)
}
