from firth.cli import main

main()
