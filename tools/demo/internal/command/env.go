package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/state"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

func (c *common) newEnv() *cobra.Command {
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := saved(c.registry, envFile)
			if err == nil {
				_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			}

			return err
		},
	}
}

// exports returns commands that set the variables in a shell.
func exports(sys *localsystem.System) string {
	var out strings.Builder

	export := func(name, value string) { fmt.Fprintf(&out, "export %s=%s\n", name, process.Quote(value)) }
	export("KUBECONFIG", sys.Plane.Kubeconfig())
	export("RINGQUERY", sys.Queries)
	export("RINGQUERY_TLS", sys.GuardedQueries)
	export("RINGQUERY_CA", sys.CA)

	for _, p := range sys.Started() {
		export("PID_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), strconv.Itoa(p.PID()))
	}
	fmt.Fprintf(&out, "export PATH=%s:\"$PATH\"\n", process.Quote(sys.BinDir+string(os.PathListSeparator)+sys.Plane.BinDir()))

	return out.String()
}

// Files in which demo serve saves how to use the system, when it is ready: the output of demo env, and the last output of demo up.
const (
	envFile   = "env"
	usageFile = "usage"
)

// save writes a file so that a reader sees nothing or all of it.
func save(stateDir, name, content string) error {
	file := filepath.Join(stateDir, name)

	err := os.WriteFile(file+".new", []byte(content), 0o600)
	if err == nil {
		err = os.Rename(file+".new", file)
	}

	if err != nil {
		return fmt.Errorf("save how to use the demo: %w", err)
	}

	return nil
}

// saved returns what the running demo serve has saved.
func saved(registry state.Registry, name string) (string, error) {
	up, err := registry.Up()
	if err != nil {
		return "", err
	}

	if up == nil || !up.Alive() {
		return "", errors.New("demo up is not running: start it with make up")
	}

	content, err := os.ReadFile(filepath.Join(up.Dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the demo is still starting: see %s, or stop it with demo down", filepath.Join(up.Dir, "logs"))
	}

	if err != nil {
		return "", fmt.Errorf("read how to use the demo: %w", err)
	}

	return string(content), nil
}
