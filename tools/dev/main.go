// Command dev prints the path of a developer tool. If necessary, it builds the pinned version into the user's cache.
//
// Each tool has its own file in pins, in the format of a go.mod, which names the tool and pins its version. So no tool affects the
// dependencies of another tool or of the services.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/clusterring/clusterring/tools/dev/toolcache"
)

const usage = `Usage: dev TOOL...    print the path of each tool, built if necessary
       dev -list     print each tool and its version
`

func main() {
	os.Exit(start())
}

// start returns the exit code.
func start() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	d := dev{out: os.Stdout, builder: &toolcache.Builder{Progress: toolcache.Console(os.Stderr)}}
	switch err := d.run(ctx, os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}

	return 0
}

// dev prints to out, and builds what is missing.
type dev struct {
	out     io.Writer
	builder *toolcache.Builder
}

func (d dev) run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("dev", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }

	list := flags.Bool("list", false, "print each tool and its version")
	if err := flags.Parse(args); err != nil {
		return err
	}

	tools, err := discover(ctx, ".")
	if err != nil {
		return err
	}

	if *list {
		return d.printList(tools)
	}

	if flags.NArg() == 0 {
		flags.Usage()
		return errors.New("no tool is given")
	}

	return d.printPaths(ctx, tools, flags.Args())
}

func (d dev) printList(tools []tool) error {
	for _, t := range tools {
		if _, err := fmt.Fprintf(d.out, "%-20s %s\n", t.name, t.version); err != nil {
			return err
		}
	}

	return nil
}

func (d dev) printPaths(ctx context.Context, tools []tool, names []string) error {
	if d.builder.Cache == "" {
		cache, err := toolcache.DefaultCache()
		if err != nil {
			return err
		}

		d.builder.Cache = cache
	}

	for _, name := range names {
		path, err := ensure(ctx, name, tools, d.builder)
		if err != nil {
			return err
		}

		if _, err := fmt.Fprintln(d.out, path); err != nil {
			return err
		}
	}

	return nil
}
