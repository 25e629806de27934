package command

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the released version of this build. Set it with
// -ldflags "-X github.com/clusterring/clusterring/tools/kubectl-ring/internal/command.Version=v1.2.3". Empty: the version from go install.
var Version = ""

func init() {
	if Version != "" {
		return
	}

	Version = "dev"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		Version = info.Main.Version
	}
}

// versionText is what version and --version print.
func versionText() string {
	return fmt.Sprintf("kubectl-ring %s (%s, API clusterring.diagnostics.v1alpha1)\n", Version, runtime.Version())
}

func (a *app) version() *cobra.Command {
	var format string

	cmd := &cobra.Command{
		Use:               "version",
		Short:             "Show the version of this program",
		Example:           "  kubectl ring version\n  kubectl ring version -o json",
		Args:              arguments(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			if format == "" {
				fmt.Fprint(a.Out, versionText())
				return nil
			}

			if err := oneOf("--output", format, []string{asJSON}); err != nil {
				return err
			}

			text, err := json.MarshalIndent(map[string]string{
				"version": Version, "goVersion": runtime.Version(), "api": "clusterring.diagnostics.v1alpha1",
			}, "", "  ")
			if err != nil {
				return fmt.Errorf("write the version: %w", err)
			}
			fmt.Fprintln(a.Out, string(text))

			return nil
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "", "`format` of the answer: json")
	complete(cmd, "output", cobra.FixedCompletions([]string{asJSON}, cobra.ShellCompDirectiveNoFileComp))

	return cmd
}
