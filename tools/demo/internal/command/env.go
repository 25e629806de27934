package command

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/lab/process"
)

func newEnv(registry state.Registry) *cobra.Command {
	return &cobra.Command{
		Use:   "env",
		Short: "Print variables that lead to what demo up has started, for your shell",
		Long: `env prints commands for a POSIX shell that set variables: KUBECONFIG and PATH for kubectl, kubectl ring and grpcurl; RINGQUERY,
the address of a query service that answers everybody on this machine, without TLS; RINGQUERY_TLS, that of one with TLS which wants
to know who asks, and RINGQUERY_CA, the authority of its certificate; and PID_SHARD_1 and the like, the ids of the processes.`,
		Example: `  eval "$(bin/demo env)"`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			up, err := registry.Up()
			if err != nil {
				return err
			}
			if up == nil || !up.Alive() {
				return errors.New("demo up does not run: start it with make up")
			}
			how, err := readUsage(up.Dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), how.exports())
			return err
		},
	}
}

// exports returns commands that set the variables in a shell.
func (h *usage) exports() string {
	var out strings.Builder
	for _, v := range h.Variables {
		fmt.Fprintf(&out, "export %s=%s\n", v.Name, process.Quote(v.Value))
	}
	fmt.Fprintf(&out, "export PATH=%s:\"$PATH\"\n", process.Quote(strings.Join(h.Path, string(os.PathListSeparator))))
	return out.String()
}
