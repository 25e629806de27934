package scenario

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrong(t *testing.T) {
	require.NoError(t, wrong[string]("nothing", nil))
	err := wrong("bad things", []string{"1", "2", "3", "4", "5", "6", "7"})
	require.EqualError(t, err, "bad things: 7 times\n1\n2\n3\n4\n5")
}
