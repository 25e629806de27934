package command

import "github.com/spf13/cobra"

// Root returns the command line, which parses arguments without running anything.
func Root(streams Streams) *cobra.Command { return newApp(streams).root() }
