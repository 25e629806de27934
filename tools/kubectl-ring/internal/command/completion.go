package command

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

// patience is how long completion waits for the server.
const patience = 3 * time.Second

// script is the program that kubectl calls to complete the arguments of this plugin.
const script = `#!/bin/sh
# kubectl calls this to complete "kubectl ring ...".
exec kubectl-ring __complete "$@"
`

func (a *app) completion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion",
		Short: "Print the script with which kubectl completes the arguments of this plugin",
		Long: `Print the script with which kubectl completes the arguments of this plugin, including the names of rings, shards, and resources.

kubectl 1.26 and later run the program kubectl_complete-ring in PATH. The completion of kubectl must be set up in your shell; see
kubectl completion --help.`,
		Example: `  kubectl ring completion >~/.local/bin/kubectl_complete-ring
  chmod +x ~/.local/bin/kubectl_complete-ring`,
		Args:              arguments(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprint(a.Out, script)
			return nil
		},
	}
}

// complete sets the completion of a flag.
func complete(cmd *cobra.Command, flag string, completion cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, completion); err != nil {
		panic(fmt.Sprintf("flag %s of %s: %v", flag, cmd.Name(), err)) // a mistake in this program
	}
}

// suggest asks the server for completions. If that fails, there are none, and shells that can show a hint show why.
func (a *app) suggest(cmd *cobra.Command, words func(context.Context, *asker) ([]string, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	// The context of the command is not set during completion.
	ctx, cancel := context.WithTimeout(cmd.Root().Context(), patience)
	defer cancel()

	var found []string

	err := a.environment(cmd)
	if err == nil {
		err = a.connect.Validate()
	}

	if err == nil {
		err = a.ask(ctx, func(s *asker) error {
			var err error

			found, err = words(ctx, s)

			return err
		})
	}

	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return cobra.AppendActiveHelp(nil, "no completion: "+failure.Clean(err.Error())), cobra.ShellCompDirectiveNoFileComp
	}

	return found, cobra.ShellCompDirectiveNoFileComp
}

// suggestOf asks the server for completions from the state of a ring.
func (a *app) suggestOf(cmd *cobra.Command, ring string, words func(*pb.GetRingResponse) []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.suggest(cmd, func(ctx context.Context, s *asker) ([]string, error) {
		res, err := s.GetRing(ctx, &pb.GetRingRequest{Name: ring})
		return words(res), err
	})
}

// completeRing completes the first argument, or a flag, with the names of rings.
func (a *app) completeRing(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Flags().Lookup("ring") == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	return a.suggest(cmd, func(ctx context.Context, s *asker) ([]string, error) {
		rings, err := allRings(ctx, s)
		return names(rings), err
	})
}

// completeRingThenResource completes with names of rings, then with the resources of the ring.
func (a *app) completeRingThenResource(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return a.completeRing(cmd, args, toComplete)
	case 1:
		return a.suggestOf(cmd, args[0], func(ring *pb.GetRingResponse) []string { return resourceNames(ring.GetRing()) })
	default:
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

// names returns the names of rings or shards.
func names[T interface{ GetName() string }](all []T) []string {
	var found []string
	for _, one := range all {
		found = append(found, one.GetName())
	}

	return found
}

func resourceNames(rings ...*pb.Ring) []string {
	var names []string

	for _, ring := range rings {
		for _, r := range ring.GetResources() {
			names = append(names, qualified(r.GetGroup(), r.GetResource()))
		}
	}
	slices.Sort(names)

	return slices.Compact(names)
}

// completeShardOfArgument completes a flag with the shards of the ring that is the first argument.
func (a *app) completeShardOfArgument(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	return a.suggestOf(cmd, args[0], func(ring *pb.GetRingResponse) []string { return names(ring.GetShards()) })
}

// completeType completes TYPE/ with the resources of all rings. The server does not know the names of objects.
func (a *app) completeType(cmd *cobra.Command, _ []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if strings.Contains(toComplete, "/") {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}

	found, directive := a.suggest(cmd, func(ctx context.Context, s *asker) ([]string, error) {
		rings, err := allRings(ctx, s)

		names := resourceNames(rings...)
		for i := range names {
			names[i] += "/"
		}

		return names, err
	})

	return found, directive | cobra.ShellCompDirectiveNoSpace
}
