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
		Short: "Print shell variables for the system that demo up has started",
		Long: `env prints commands for a POSIX shell that set these variables:

  KUBECONFIG, PATH   for kubectl, kubectl ring, and grpcurl
  RINGQUERY          address of a query service without TLS and authentication
  RINGQUERY_TLS      address of a query service with TLS and authentication
  RINGQUERY_CA       CA of its certificate
  PID_SHARD_1, ...   ids of the processes`,
		Example: `  eval "$(bin/demo env)"`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			up, err := registry.Up()
			if err != nil {
				return err
			}

			if up == nil || !up.Alive() {
				return errors.New("demo up is not running: start it with make up")
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
