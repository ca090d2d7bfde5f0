from .cli import main

if __name__ == "__main__":  # processes of a pool import this file under another name
    main()
