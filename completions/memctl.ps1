# Completion of memctl for PowerShell 7.3 or later.

Register-ArgumentCompleter -Native -CommandName memctl -ScriptBlock {
    param($word, $line, $position)
    $words = @($line.CommandElements | Select-Object -Skip 1 |
        Where-Object { $_.Extent.EndOffset -lt $position } |
        ForEach-Object {
            if ($_ -is [Management.Automation.Language.StringConstantExpressionAst]) { $_.Value }
            else { $_.Extent.Text }
        })
    $env:_MEMCTL_COMPLETE = 'powershell'
    try { $answer = @(& $line.GetCommandName() @words $word 2>$null) }
    finally { Remove-Item Env:_MEMCTL_COMPLETE }
    foreach ($row in $answer | Select-Object -Skip 1) {
        $value, $meaning = $row -split "`t", 2
        if (-not $meaning) { $meaning = $value }
        [Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $meaning)
    }
    if ($answer[0] -eq 'files') {
        [Management.Automation.CompletionCompleters]::CompleteFilename($word)
    }
}
