// Command dev prints the path of a developer's tool, after building the pinned version into the user's cache if need be.
//
// Each tool has a directory here with a module of its own, so that no tool chooses the dependencies of another, or of
// the services. Its go.mod names the tool and pins its version.
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

const usage = `Usage: dev TOOL...    print the path of each tool, built if need be
       dev -list     print each tool and its version
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, &toolcache.Builder{Progress: toolcache.Console(os.Stderr)})
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run prints to out what the arguments ask for.
func run(ctx context.Context, args []string, out io.Writer, builder *toolcache.Builder) error {
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
		return printList(out, tools)
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return errors.New("name a tool")
	}
	return printPaths(ctx, flags.Args(), out, tools, builder)
}

func printList(out io.Writer, tools []tool) error {
	for _, t := range tools {
		if _, err := fmt.Fprintf(out, "%-20s %s\n", t.name, t.version); err != nil {
			return err
		}
	}
	return nil
}

func printPaths(ctx context.Context, names []string, out io.Writer, tools []tool, builder *toolcache.Builder) error {
	if builder.Cache == "" {
		cache, err := toolcache.DefaultCache()
		if err != nil {
			return err
		}
		builder.Cache = cache
	}
	for _, name := range names {
		path, err := ensure(ctx, name, tools, builder)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, path); err != nil {
			return err
		}
	}
	return nil
}
